"""GSM8K-style word problems from our own templates.

A template is a function of a `G` (seeded random source with the word lists) that returns
(sentences of the question, steps of the answer, number). A step marks each calculation as
`[[expr]]`; the renderers turn it into GSM8K's `expr = <<expr=value>>value` or into `expr = value`.
Every intermediate value is a non-negative integer: a template that would divide unevenly or go
below zero is an error, and test_data.py runs thousands of each.
"""
import hashlib
import random
import re

from words import (ANIMALS, BIG_GOODS, BOXES, COLORS, DAYS, FEMALE, FLOWERS, FOODS, FRUIT, GOODS,
                   HOBBIES, JOBS, MALE, NUMBER_WORDS, PLACES, SHOPS, SUBJECTS, THINGS, TREES)

TEMPLATES = []


def template(fn):
    TEMPLATES.append(fn)
    return fn


class Person:
    def __init__(self, name, female):
        self.n = name
        self.he, self.him, self.his = ("she", "her", "her") if female else ("he", "him", "his")
        self.He = self.he.capitalize()

    def __str__(self):
        return self.n


class G:
    """A random source with the vocabulary of the problems."""

    def __init__(self, rng):
        self.r = rng
        self.names = []

    def i(self, lo, hi):
        return self.r.randint(lo, hi)

    def pick(self, *options):
        return options[int(self.r.random() * len(options))]

    def of(self, seq):
        return seq[int(self.r.random() * len(seq))]

    def some(self, seq, k):
        return self.r.sample(seq, k)

    def person(self):
        while True:
            female = self.r.random() < 0.5
            name = self.of(FEMALE if female else MALE)
            if name not in self.names:
                self.names.append(name)
                return Person(name, female)

    def num(self, value):
        """The number as the question shows it: sometimes in words."""
        if value <= 12 and self.r.random() < 0.12:
            return NUMBER_WORDS[value]
        return str(value)

    def money(self, value):
        return f"${value}" if self.r.random() < 0.75 else f"{value} dollars"

    def things(self):
        return self.of(self.pick(FRUIT, THINGS, FOODS))


@template
def buy_and_eat(g):
    p, (xs, _) = g.person(), g.of(g.pick(FRUIT, FOODS))
    a, b = g.i(3, 12), g.i(2, 9)
    e = g.i(1, a * b - 1) if a * b < 12 else g.i(2, 10)
    boxes, box = g.of(BOXES)
    q = [g.pick(f"{p} buys {g.num(a)} {boxes} of {xs} with {g.num(b)} in each {box}.",
                f"{p} has {g.num(a)} {boxes}, and each {box} holds {g.num(b)} {xs}.",
                f"There are {g.num(a)} {boxes} on the table. Each {box} contains {g.num(b)} {xs} that belong to {p}."),
         g.pick(f"{p.He} eats {g.num(e)} of them.", f"{p.He} gives {g.num(e)} of them to a friend.",
                f"Then {p.he} loses {g.num(e)} of them."),
         g.pick(f"How many {xs} does {p.he} have left?", f"How many {xs} are left?")]
    s = [g.pick(f"{p} starts with [[{a}*{b}]] {xs}.", f"The {boxes} hold [[{a}*{b}]] {xs}."),
         g.pick(f"After that {p.he} has [[{a*b}-{e}]] {xs} left.", f"That leaves [[{a*b}-{e}]] {xs}.")]
    return q, s, a * b - e


@template
def shop_total_change(g):
    p = g.person()
    (xs, x), (ys, y) = g.some(GOODS, 2)
    a, b, c, d = g.i(2, 9), g.i(2, 15), g.i(2, 9), g.i(2, 15)
    t = a * b + c * d
    pay = (t // 50 + g.i(1, 2)) * 50
    q = [g.pick(f"{p} buys {g.num(a)} {xs} for {g.money(b)} each and {g.num(c)} {ys} for {g.money(d)} each.",
                f"At {g.of(SHOPS)} a {x} costs {g.money(b)} and a {y} costs {g.money(d)}. {p} takes {g.num(a)} {xs} and {g.num(c)} {ys}."),
         g.pick(f"{p.He} pays with {g.money(pay)}.", f"{p.He} hands over {g.money(pay)}."),
         g.pick(f"How much change does {p.he} get?", f"How many dollars does {p.he} get back?")]
    s = [f"The {xs} cost [[{a}*{b}]] dollars.", f"The {ys} cost [[{c}*{d}]] dollars.",
         g.pick(f"Together that is [[{a*b}+{c*d}]] dollars.", f"In total {p} spends [[{a*b}+{c*d}]] dollars."),
         g.pick(f"The change is [[{pay}-{t}]] dollars.", f"{p} gets back [[{pay}-{t}]] dollars.")]
    return q, s, pay - t


@template
def half_as_many(g):
    p, o = g.person(), g.person()
    xs, _ = g.things()
    a = g.i(4, 60) * 2
    q = [g.pick(f"{p} sold {a} {xs} on {g.of(DAYS)}.", f"{p} collected {a} {xs}.", f"{p} has {a} {xs}."),
         g.pick(f"{o} has half as many {xs} as {p}.", f"{o} only got half that number."),
         g.pick(f"How many {xs} do they have together?", f"How many {xs} do {p} and {o} have in all?")]
    s = [f"{o} has [[{a}/2]] {xs}.", f"Together they have [[{a}+{a//2}]] {xs}."]
    return q, s, a + a // 2


@template
def times_as_many(g):
    p, o = g.person(), g.person()
    xs, _ = g.things()
    a, k, m = g.i(3, 40), g.i(2, 5), g.i(2, 20)
    w = {2: "twice", 3: "three times", 4: "four times", 5: "five times"}[k]
    q = [g.pick(f"{p} has {a} {xs}.", f"{p} owns {a} {xs}.", f"{p} found {a} {xs} at the {g.of(PLACES)}."),
         g.pick(f"{o} has {w} as many {xs} as {p}.", f"{o} has {w} that many."),
         g.pick(f"Then {o} buys {g.num(m)} more.", f"Later {o} finds {g.num(m)} more."),
         g.pick(f"How many {xs} does {o} have now?", f"How many {xs} does {o} have at the end?")]
    s = [f"At first {o} has [[{a}*{k}]] {xs}.", g.pick(f"Now {o} has [[{a*k}+{m}]] {xs}.", f"With the new ones {o} has [[{a*k}+{m}]] {xs}.")]
    return q, s, a * k + m


@template
def weekly_wage(g):
    p, job = g.person(), g.of(JOBS)
    h, d, w = g.i(3, 9), g.i(2, 6), g.pick(8, 9, 10, 11, 12, 15, 20, 25, 30)
    q = [g.pick(f"{p} works as a {job} for {g.money(w)} an hour.", f"As a {job}, {p} earns {g.money(w)} per hour."),
         g.pick(f"{p.He} works {g.num(h)} hours a day, {g.num(d)} days a week.", f"Every week {p.he} works {g.num(d)} days with {g.num(h)} hours each."),
         g.pick(f"How much does {p.he} earn in a week?", f"What is {p.his} weekly pay in dollars?")]
    s = [g.pick(f"{p} works [[{h}*{d}]] hours a week.", f"In a week that is [[{h}*{d}]] hours."),
         g.pick(f"{p.He} earns [[{h*d}*{w}]] dollars a week.", f"The pay is [[{h*d}*{w}]] dollars.")]
    return q, s, h * d * w


@template
def save_for_goal(g):
    p, x = g.person(), g.of(BIG_GOODS)
    wk, n = g.i(4, 20), g.i(3, 12)
    have = g.i(5, 60)
    cost = have + wk * n
    q = [g.pick(f"{p} wants a {x} that costs {g.money(cost)}.", f"A {x} costs {g.money(cost)}, and {p} wants to buy it."),
         g.pick(f"{p.He} already has {g.money(have)}.", f"So far {p.he} has saved {g.money(have)}."),
         g.pick(f"{p.He} saves {g.money(wk)} every week.", f"Each week {p.he} puts away {g.money(wk)}."),
         g.pick(f"How many weeks must {p.he} save?", f"After how many weeks can {p.he} buy the {x}?")]
    s = [g.pick(f"{p} still needs [[{cost}-{have}]] dollars.", f"The missing amount is [[{cost}-{have}]] dollars."),
         g.pick(f"That takes [[{cost-have}/{wk}]] weeks.", f"{p.He} needs [[{cost-have}/{wk}]] weeks.")]
    return q, s, n


@template
def share_equally(g):
    p, (xs, _) = g.person(), g.things()
    k, each, keep = g.i(2, 9), g.i(2, 15), g.i(1, 12)
    t = k * each + keep
    q = [g.pick(f"{p} has {t} {xs}.", f"{p} made {t} {xs}.", f"{p} brings {t} {xs} to the {g.of(PLACES)}."),
         g.pick(f"{p.He} keeps {g.num(keep)} and shares the rest equally among {g.num(k)} friends.",
                f"After keeping {g.num(keep)}, {p.he} splits the others evenly between {g.num(k)} friends."),
         g.pick(f"How many {xs} does each friend get?", f"How many does every friend receive?")]
    s = [f"{p} shares [[{t}-{keep}]] {xs}.", f"Each friend gets [[{t-keep}/{k}]] {xs}."]
    return q, s, each


@template
def three_days(g):
    p, (xs, _) = g.person(), g.things()
    a, m = g.i(5, 40), g.i(2, 15)
    k = g.i(2, 4)
    w = {2: "twice", 3: "three times", 4: "four times"}[k]
    d = g.i(0, 4)
    verb, past = g.pick(("sell", "sold"), ("collect", "collected"), ("pack", "packed"), ("count", "counted"))
    q = [f"On {DAYS[d]} {p} {past} {a} {xs}.",
         g.pick(f"On {DAYS[d+1]} {p.he} {past} {g.num(m)} more than on {DAYS[d]}.", f"The next day {p.he} {past} {g.num(m)} more."),
         f"On {DAYS[d+2]} {p.he} {past} {w} as many as on {DAYS[d]}.",
         g.pick(f"How many {xs} did {p.he} {verb} in these three days?", f"How many {xs} did {p.he} {verb} in total?")]
    s = [f"On {DAYS[d+1]} {p.he} {past} [[{a}+{m}]] {xs}.", f"On {DAYS[d+2]} {p.he} {past} [[{a}*{k}]] {xs}.",
         f"In total {p.he} {past} [[{a}+{a+m}+{a*k}]] {xs}."]
    return q, s, a + a + m + a * k


@template
def farm_legs(g):
    p = g.person()
    a, b = g.i(3, 25), g.i(3, 30)
    four = g.of([t for t in ANIMALS if t[1] in ("cow", "goat", "pig", "horse", "rabbit", "donkey", "llama")])[0]
    two = g.of([t for t in ANIMALS if t[1] in ("duck", "chicken", "goose", "turkey")])[0]
    q = [g.pick(f"{p} has a farm with {a} {four} and {b} {two}.", f"On {p}'s farm there are {a} {four} and {b} {two}."),
         g.pick("How many legs do the animals have in all?", f"How many legs are there on the farm, not counting {p}?")]
    s = [f"The {four} have [[{a}*4]] legs.", f"The {two} have [[{b}*2]] legs.", f"In all there are [[{a*4}+{b*2}]] legs."]
    return q, s, a * 4 + b * 2


@template
def pages_left(g):
    p = g.person()
    a, d = g.i(5, 30), g.i(3, 9)
    t = a * d + g.i(10, 120)
    more = g.i(5, 25)
    left = t - a * d
    if more >= left:
        more = left // 2
    q = [g.pick(f"{p} is reading a book with {t} pages.", f"A book has {t} pages, and {p} starts to read it."),
         g.pick(f"{p.He} reads {a} pages a day for {g.num(d)} days.", f"For {g.num(d)} days {p.he} reads {a} pages each day."),
         g.pick(f"Then {p.he} reads {more} more pages.", f"After that {p.he} reads another {more} pages."),
         g.pick("How many pages are left?", f"How many pages does {p.he} still have to read?")]
    s = [f"In {d} days {p} reads [[{a}*{d}]] pages.", f"With the other pages that makes [[{a*d}+{more}]] pages.",
         f"So [[{t}-{a*d+more}]] pages are left."]
    return q, s, left - more


@template
def percent_off(g):
    p, (xs, x) = g.person(), g.of(GOODS)
    pc = g.pick(10, 20, 25, 50)
    price = g.i(1, 10) * 20
    n = g.i(2, 6)
    off = price * pc // 100
    q = [g.pick(f"A {x} costs {g.money(price)}.", f"The price of a {x} is {g.money(price)}."),
         g.pick(f"Today there is a {pc}% discount.", f"In the sale it is {pc}% off."),
         g.pick(f"{p} buys {g.num(n)} {xs}.", f"{p} wants {g.num(n)} of them."),
         g.pick(f"How much does {p.he} pay?", "How much do they cost in total?")]
    s = [f"The discount is [[{price}*{pc}/100]] dollars.", f"One {x} costs [[{price}-{off}]] dollars.",
         f"{p} pays [[{price-off}*{n}]] dollars."]
    return q, s, (price - off) * n


@template
def ages(g):
    p, o = g.person(), g.person()
    a, k, y = g.i(4, 18), g.i(2, 4), g.i(2, 12)
    w = {2: "twice", 3: "three times", 4: "four times"}[k]
    q = [g.pick(f"{p} is {a} years old.", f"{p} just turned {a}."),
         g.pick(f"{o} is {w} as old as {p}.", f"{p.his.capitalize()} cousin {o} is {w} as old."),
         g.pick(f"How old will {o} be in {g.num(y)} years?", f"What will be the age of {o} {g.num(y)} years from now?")]
    s = [f"{o} is [[{a}*{k}]] years old now.", f"In {y} years {o} will be [[{a*k}+{y}]] years old."]
    return q, s, a * k + y


@template
def age_sum(g):
    p, o, t = g.person(), g.person(), g.person()
    a, d1, d2 = g.i(8, 40), g.i(2, 7), g.i(2, 9)
    q = [f"{p} is {a} years old.", f"{o} is {g.num(d1)} years younger than {p}.",
         f"{t} is {g.num(d2)} years older than {o}.",
         g.pick("What is the sum of their ages?", f"How old are {p}, {o} and {t} together?")]
    s = [f"{o} is [[{a}-{d1}]] years old.", f"{t} is [[{a-d1}+{d2}]] years old.",
         f"Together they are [[{a}+{a-d1}+{a-d1+d2}]] years old."]
    return q, s, 3 * a - 2 * d1 + d2


@template
def distance_trip(g):
    p = g.person()
    v1, h1, v2, h2 = g.i(2, 9) * 10, g.i(2, 6), g.i(2, 9) * 10, g.i(2, 5)
    veh = g.pick("drives", "rides", "travels")
    q = [g.pick(f"{p} {veh} for {g.num(h1)} hours at {v1} miles per hour.", f"At {v1} miles per hour {p} {veh} for {g.num(h1)} hours."),
         g.pick(f"Then {p.he} goes on for {g.num(h2)} hours at {v2} miles per hour.", f"The next {g.num(h2)} hours {p.he} moves at {v2} miles per hour."),
         g.pick(f"How many miles does {p.he} travel in total?", "How long is the whole trip in miles?")]
    s = [f"The first part is [[{v1}*{h1}]] miles.", f"The second part is [[{v2}*{h2}]] miles.",
         f"The whole trip is [[{v1*h1}+{v2*h2}]] miles."]
    return q, s, v1 * h1 + v2 * h2


@template
def garden_rows(g):
    p, fl, f2 = g.person(), *g.some(FLOWERS, 2)
    a, b, c, d = g.i(3, 12), g.i(4, 12), g.i(3, 12), g.i(4, 12)
    dead = g.i(2, 10)
    q = [g.pick(f"{p} plants {g.num(a)} rows of {b} {fl} and {g.num(c)} rows of {d} {f2}.",
                f"In {p}'s garden there are {g.num(a)} rows with {b} {fl} each and {g.num(c)} rows with {d} {f2} each."),
         g.pick(f"After a storm {g.num(dead)} flowers are gone.", f"{g.num(dead).capitalize()} of the flowers do not grow."),
         g.pick("How many flowers are left?", "How many flowers remain?")]
    s = [f"There are [[{a}*{b}]] {fl}.", f"There are [[{c}*{d}]] {f2}.", f"That makes [[{a*b}+{c*d}]] flowers.",
         f"After the loss [[{a*b+c*d}-{dead}]] flowers are left."]
    return q, s, a * b + c * d - dead


@template
def bus_stops(g):
    a = g.i(20, 60)
    off1, on1 = g.i(2, 9), g.i(2, 15)
    off2, on2 = g.i(2, 9), g.i(2, 12)
    veh = g.pick("bus", "train", "tram", "ferry")
    q = [g.pick(f"A {veh} leaves the {g.of(PLACES)} with {a} passengers.", f"There are {a} people on a {veh}."),
         f"At the first stop {g.num(off1)} get off and {g.num(on1)} get on.",
         f"At the second stop {g.num(off2)} get off and {g.num(on2)} get on.",
         g.pick(f"How many people are on the {veh} now?", f"How many passengers does the {veh} carry after that?")]
    s = [f"After the first stop there are [[{a}-{off1}+{on1}]] people.",
         f"After the second stop there are [[{a-off1+on1}-{off2}+{on2}]] people."]
    return q, s, a - off1 + on1 - off2 + on2


@template
def recipe_scale(g):
    p, (xs, _) = g.person(), g.of(FOODS)
    per, k, have = g.i(2, 6), g.i(2, 8), g.i(1, 8)
    base = g.pick(4, 6, 8, 10, 12)
    what = g.pick("cups of flour", "eggs", "spoons of sugar", "cups of milk")
    need = per * k
    have = min(have, need - 1)
    q = [g.pick(f"{p} needs {g.num(per)} {what} to make {base} {xs}.", f"A recipe for {base} {xs} asks for {g.num(per)} {what}."),
         g.pick(f"{p} wants to make {base*k} {xs}.", f"{p} plans {base*k} {xs} for a party."),
         g.pick(f"{p.He} already has {g.num(have)} {what}.", f"There are {g.num(have)} {what} in the kitchen."),
         g.pick(f"How many more {what} does {p.he} need?", f"How many {what} must {p.he} still buy?")]
    s = [f"{p} makes the recipe [[{base*k}/{base}]] times.", f"That needs [[{k}*{per}]] {what}.",
         f"{p.He} still needs [[{need}-{have}]] {what}."]
    return q, s, need - have


@template
def class_split(g):
    n, k = g.i(2, 8), g.i(3, 8)
    girls = g.i(2, n * k - 2)
    absent = g.i(1, 5)
    t = n * k + absent
    sub = g.of(SUBJECTS)
    q = [g.pick(f"There are {t} students in a {sub} class.", f"A {sub} class has {t} students."),
         g.pick(f"Today {g.num(absent)} of them are ill.", f"{g.num(absent).capitalize()} students are absent today."),
         g.pick(f"The teacher puts the others into groups of {k}.", f"The rest work in teams of {k}."),
         g.pick("How many groups are there?", "How many teams does the teacher get?")]
    s = [f"There are [[{t}-{absent}]] students in the room.", f"They form [[{t-absent}/{k}]] groups."]
    return q, s, n


@template
def fence(g):
    p = g.person()
    w, l, c = g.i(3, 25), g.i(5, 30), g.i(2, 9)
    what = g.pick("garden", "field", "yard", "playground")
    q = [g.pick(f"{p} builds a fence around a {what} that is {l} meters long and {w} meters wide.",
                f"{p}'s {what} is {l} meters by {w} meters, and {p.he} wants a fence around it."),
         g.pick(f"Each meter of fence costs {g.money(c)}.", f"The fence costs {g.money(c)} per meter."),
         g.pick("How much does the fence cost?", f"How many dollars does {p.he} need for the fence?")]
    s = [f"Length and width add up to [[{l}+{w}]] meters.", f"The fence is [[{l+w}*2]] meters long.",
         f"It costs [[{(l+w)*2}*{c}]] dollars."]
    return q, s, (l + w) * 2 * c


@template
def tank_fill(g):
    p = g.person()
    rate, leak = g.i(6, 20), g.i(1, 5)
    n = g.i(3, 15)
    vol = (rate - leak) * n
    what = g.pick("tank", "pool", "barrel", "pond")
    q = [g.pick(f"{p} fills a {what} that holds {vol} liters.", f"A {what} at {p}'s house holds {vol} liters and is empty."),
         f"Each minute {rate} liters flow in and {g.num(leak)} liters leak out.",
         g.pick(f"How many minutes does it take to fill the {what}?", f"After how many minutes is the {what} full?")]
    s = [f"Each minute the {what} gains [[{rate}-{leak}]] liters.", f"It takes [[{vol}/{rate-leak}]] minutes."]
    return q, s, n


@template
def party_plates(g):
    p = g.person()
    n, k, (xs, x) = g.i(5, 25), g.i(2, 5), g.of(FOODS)
    pack, price = g.pick(4, 5, 6, 8, 10), g.i(2, 9)
    total = n * k
    packs = -(-total // pack)
    total2 = packs * pack
    extra = total2 - total
    q = [g.pick(f"{p} invites {n} guests and wants {g.num(k)} {xs} for each of them.", f"For a party with {n} guests, {p} plans {g.num(k)} {xs} per guest."),
         *( [f"{p.He} also wants {g.num(extra)} {xs} in reserve."] if extra else []),
         g.pick(f"The {xs} come in packs of {pack} for {g.money(price)} a pack.", f"A pack of {pack} {xs} costs {g.money(price)}."),
         g.pick(f"How much do the {xs} cost?", f"How much money does {p.he} spend?")]
    s = [f"The guests need [[{n}*{k}]] {xs}."]
    if extra:
        s.append(f"With the reserve that is [[{total}+{extra}]] {xs}.")
    s += [f"{p} buys [[{total2}/{pack}]] packs.", f"They cost [[{packs}*{price}]] dollars."]
    return q, s, packs * price


@template
def compare_earnings(g):
    p, o = g.person(), g.person()
    (xs, _), (ys, _) = g.some(FOODS, 2)
    a, b, c, d = g.i(4, 20), g.i(2, 9), g.i(4, 20), g.i(2, 9)
    if a * b <= c * d:
        a, b, c, d = c, d, a, b
    if a * b == c * d:
        a += 1
    q = [g.pick(f"{p} sells {a} {xs} for {g.money(b)} each.", f"At {g.of(SHOPS)} {p} sells {a} {xs} at {g.money(b)} apiece."),
         g.pick(f"{o} sells {c} {ys} for {g.money(d)} each.", f"{o} sells {c} {ys} at {g.money(d)} apiece."),
         g.pick(f"How much more money does {p} make than {o}?", f"By how many dollars does {p} earn more than {o}?")]
    s = [f"{p} makes [[{a}*{b}]] dollars.", f"{o} makes [[{c}*{d}]] dollars.", f"The difference is [[{a*b}-{c*d}]] dollars."]
    return q, s, a * b - c * d


@template
def candy_bowl(g):
    cs = g.some(COLORS, 3)
    a, m = g.i(5, 30), g.i(2, 12)
    k = g.i(2, 3)
    w = {2: "twice", 3: "three times"}[k]
    xs, _ = g.of(THINGS)
    q = [f"A {g.pick('bowl', 'box', 'jar', 'bag')} holds {a} {cs[0]} {xs}.", f"It has {g.num(m)} more {cs[1]} {xs} than {cs[0]} ones.",
         f"There are {w} as many {cs[2]} {xs} as {cs[1]} ones.",
         g.pick(f"How many {xs} are there in all?", f"What is the total number of {xs}?")]
    s = [f"There are [[{a}+{m}]] {cs[1]} {xs}.", f"There are [[{a+m}*{k}]] {cs[2]} {xs}.",
         f"In all there are [[{a}+{a+m}+{(a+m)*k}]] {xs}."]
    return q, s, a + (a + m) * (k + 1)


@template
def minutes_practice(g):
    p, hob = g.person(), g.of(HOBBIES)
    a, d, b, e = g.i(2, 9) * 5, g.i(2, 5), g.i(2, 12) * 5, g.pick(1, 2)
    e_txt = "one day" if e == 1 else "two days"
    q = [g.pick(f"{p} spends {a} minutes on {hob} on {g.num(d)} days of the week.", f"On {g.num(d)} days a week {p} does {a} minutes of {hob}."),
         g.pick(f"On {e_txt} {p.he} spends {b} minutes on it.", f"On {e_txt} it is {b} minutes instead."),
         g.pick("How many minutes is that in a week?", f"How many minutes a week does {p.he} spend on {hob}?")]
    s = [f"The {d} days make [[{a}*{d}]] minutes."]
    if e == 2:
        s.append(f"The two other days make [[{b}*2]] minutes.")
    s.append(f"In a week that is [[{a*d}+{b*e}]] minutes.")
    return q, s, a * d + b * e


@template
def tickets(g):
    p = g.person()
    ad, ch, na, nc = g.i(6, 25), g.i(2, 12), g.i(2, 6), g.i(2, 9)
    where = g.pick("zoo", "museum", "theater", "castle", "pool", "stadium", "fair")
    dis = g.i(2, 15)
    t = na * ad + nc * ch
    q = [g.pick(f"Tickets for the {where} cost {g.money(ad)} for adults and {g.money(ch)} for children.",
                f"At the {where} an adult pays {g.money(ad)} and a child pays {g.money(ch)}."),
         g.pick(f"{p} buys tickets for {g.num(na)} adults and {g.num(nc)} children.", f"{p}'s group has {g.num(na)} adults and {g.num(nc)} children."),
         g.pick(f"{p.He} has a coupon for {g.money(dis)} off.", f"A coupon takes {g.money(dis)} off the total."),
         g.pick(f"How much does {p.he} pay?", "How much do the tickets cost in the end?")]
    s = [f"The adults cost [[{na}*{ad}]] dollars.", f"The children cost [[{nc}*{ch}]] dollars.",
         f"Without the coupon it is [[{na*ad}+{nc*ch}]] dollars.", f"With the coupon it is [[{t}-{dis}]] dollars."]
    return q, s, t - dis


@template
def remaining_fraction(g):
    p, (xs, _) = g.person(), g.things()
    den = g.pick(2, 3, 4, 5)
    word = {2: "half", 3: "a third", 4: "a quarter", 5: "a fifth"}[den]
    a = den * g.i(3, 20)
    rest = a - a // den
    b = g.i(1, min(rest - 1, 12))
    o = g.person()
    q = [g.pick(f"{p} has {a} {xs}.", f"{p} baked or bought {a} {xs}.", f"There are {a} {xs} in {p}'s room."),
         g.pick(f"{p.He} gives {word} of them to {o}.", f"{o} gets {word} of them."),
         g.pick(f"Then {p.he} loses {g.num(b)}.", f"Then {p.he} sells {g.num(b)} of the rest."),
         g.pick(f"How many {xs} does {p} have now?", f"How many {xs} does {p} keep?")]
    s = [f"{o} gets [[{a}/{den}]] {xs}.", f"{p} then has [[{a}-{a//den}]] {xs}.", f"At the end {p.he} has [[{rest}-{b}]] {xs}."]
    return q, s, rest - b


@template
def boxes_needed(g):
    p = g.person()
    (xs, _), (boxes, box) = g.things(), g.of(BOXES)
    a, b = g.i(5, 60), g.i(5, 60)
    per = g.i(3, 9)
    b += (per - (a + b) % per) % per
    o = g.person()
    q = [g.pick(f"{p} has {a} {xs} and {o} has {b} {xs}.", f"{p} brings {a} {xs}, and {o} brings {b} {xs}."),
         g.pick(f"They put all of them into {boxes} that hold {g.num(per)} each.", f"Together they pack them into {boxes}, {g.num(per)} {xs} to a {box}."),
         g.pick(f"How many {boxes} do they need?", f"How many {boxes} do they fill?")]
    s = [f"Together they have [[{a}+{b}]] {xs}.", f"They need [[{a+b}/{per}]] {boxes}."]
    return q, s, (a + b) // per


@template
def steps_walk(g):
    p = g.person()
    a, k, d = g.i(2, 6) * 100, g.i(2, 3), g.i(2, 5)
    back = g.pick("and back", "and home again")
    pl = g.of(PLACES)
    q = [g.pick(f"It is {a} meters from {p}'s house to the {pl}.", f"{p} lives {a} meters from the {pl}."),
         g.pick(f"{p.He} walks there {back} {g.num(k)} times a day.", f"Every day {p.he} goes there {back} {g.num(k)} times."),
         g.pick(f"How many meters does {p.he} walk in {g.num(d)} days?", f"How far does {p.he} walk in {g.num(d)} days, in meters?")]
    s = [f"There {back} is [[{a}*2]] meters.", f"In a day {p.he} walks [[{a*2}*{k}]] meters.", f"In {d} days {p.he} walks [[{a*2*k}*{d}]] meters."]
    return q, s, a * 2 * k * d


@template
def library_books(g):
    t = g.i(8, 40) * 10
    out, back, new = g.i(10, 60), g.i(5, 40), g.i(5, 50)
    back = min(back, out)
    pl = g.pick("library", "school library", "village library")
    q = [g.pick(f"A {pl} has {t} books.", f"There are {t} books in the {pl}."),
         g.pick(f"In the morning {out} books are borrowed.", f"Before lunch readers take {out} books."),
         g.pick(f"In the afternoon {back} books come back.", f"Later {back} of them are returned."),
         g.pick(f"In the evening {new} new books arrive.", f"Then the {pl} buys {new} new books."),
         g.pick(f"How many books are in the {pl} now?", f"How many books does the {pl} have at the end?")]
    s = [f"After the morning there are [[{t}-{out}]] books.", f"With the returned books there are [[{t-out}+{back}]] books.",
         f"With the new books there are [[{t-out+back}+{new}]] books."]
    return q, s, t - out + back + new


@template
def average_score(g):
    p, sub = g.person(), g.of(SUBJECTS)
    avg = g.i(60, 95)
    d1, d2 = g.i(1, 9), g.i(1, 9)
    a, b = avg - d1, avg + d2
    c = avg * 3 - a - b
    q = [g.pick(f"{p} gets {a}, {b} and {c} points in three {sub} tests.", f"In three {sub} tests {p} scores {a}, {b} and {c}."),
         g.pick(f"What is {p.his} average score?", "What is the average of the three scores?")]
    s = [f"The sum is [[{a}+{b}+{c}]] points.", f"The average is [[{a+b+c}/3]] points."]
    return q, s, avg


@template
def parking_wheels(g):
    c, b, t = g.i(3, 30), g.i(2, 20), g.i(1, 8)
    q = [g.pick(f"There are {c} cars, {b} bicycles and {g.num(t)} tricycles in the lot.", f"In the street stand {c} cars, {b} bicycles and {g.num(t)} tricycles."),
         g.pick("How many wheels are there in total?", "How many wheels do they have altogether?")]
    s = [f"The cars have [[{c}*4]] wheels.", f"The bicycles have [[{b}*2]] wheels.", f"The tricycles have [[{t}*3]] wheels.",
         f"In total there are [[{c*4}+{b*2}+{t*3}]] wheels."]
    return q, s, c * 4 + b * 2 + t * 3


@template
def candles_burn(g):
    p = g.person()
    a, b, h = g.i(15, 40), g.i(1, 4), g.i(2, 6)
    n = g.i(2, 5)
    left = a - b * h
    if left <= 0:
        b, h = 2, 3
        left = a - 6
    q = [g.pick(f"{p} has {g.num(n)} candles that are {a} centimeters long.", f"Each of {p}'s {g.num(n)} candles is {a} centimeters long."),
         f"A candle gets {g.num(b)} centimeters shorter every hour.",
         g.pick(f"All of them burn for {g.num(h)} hours.", f"{p} lets them all burn for {g.num(h)} hours."),
         g.pick("How many centimeters of candle are left in total?", "What is the total length of the candles after that, in centimeters?")]
    s = [f"Each candle loses [[{b}*{h}]] centimeters.", f"Each candle is then [[{a}-{b*h}]] centimeters long.",
         f"In total that is [[{left}*{n}]] centimeters."]
    return q, s, left * n


@template
def tree_planting(g):
    p, o = g.person(), g.person()
    tr, t2 = g.some(TREES, 2)
    a, k, h = g.i(3, 15), g.i(2, 4), g.i(2, 6)
    b = g.i(2, 9)
    q = [g.pick(f"{p} plants {a} {tr} trees an hour and {o} plants {b} {t2} trees an hour.", f"Every hour {p} can plant {a} {tr} trees while {o} can plant {b} {t2} trees."),
         g.pick(f"They work for {g.num(h)} hours.", f"Both of them work {g.num(h)} hours."),
         g.pick("How many trees do they plant together?", "How many trees are planted in all?")]
    s = [f"In an hour they plant [[{a}+{b}]] trees.", f"In {h} hours they plant [[{a+b}*{h}]] trees."]
    return q, s, (a + b) * h


@template
def profit(g):
    p, (xs, x) = g.person(), g.of(g.pick(FRUIT, FOODS, GOODS))
    n, c = g.i(4, 20), g.i(2, 9)
    m = g.i(1, 8)
    sp = c + m
    rent = g.i(1, n * m - 1) if n * m < 20 else g.i(3, 18)
    q = [g.pick(f"{p} makes {n} {xs}. Each {x} costs {p.him} {g.money(c)}.", f"It costs {p} {g.money(c)} to make one {x}, and {p.he} makes {n} of them."),
         g.pick(f"{p.He} sells them for {g.money(sp)} each.", f"Every {x} is sold for {g.money(sp)}."),
         g.pick(f"The stand costs {g.money(rent)}.", f"{p.He} also pays {g.money(rent)} for the stand."),
         g.pick(f"What is {p.his} profit?", f"How many dollars does {p.he} earn after all costs?")]
    s = [f"On each {x} {p} makes [[{sp}-{c}]] dollars.", f"On all of them {p.he} makes [[{m}*{n}]] dollars.",
         f"The profit is [[{m*n}-{rent}]] dollars."]
    return q, s, m * n - rent


@template
def two_shelves(g):
    (xs, _) = g.of(THINGS)
    up, low = g.i(10, 60), g.i(10, 60)
    mv = g.i(2, min(9, up - 1))
    a, b = up - mv, low + mv
    if a > b:
        ask, diff, first = "How many more {xs} are on the upper shelf than on the lower one now?", a - b, (a, b)
    else:
        if a == b:
            low += 1
            b += 1
        ask, diff, first = "How many more {xs} are on the lower shelf than on the upper one now?", b - a, (b, a)
    p = g.person()
    q = [g.pick(f"The upper shelf holds {up} {xs} and the lower shelf holds {low}.", f"{p} has {up} {xs} on the upper shelf and {low} on the lower one."),
         f"{p} moves {g.num(mv)} {xs} from the upper shelf to the lower one.", ask.format(xs=xs)]
    s = [f"The upper shelf now has [[{up}-{mv}]] {xs}.", f"The lower shelf now has [[{low}+{mv}]] {xs}.", f"The difference is [[{first[0]}-{first[1]}]] {xs}."]
    return q, s, diff


@template
def monthly_bills(g):
    p = g.person()
    inc = g.i(12, 30) * 100
    rent, food, other = g.i(3, 7) * 100, g.i(10, 25) * 10, g.i(3, 15) * 10
    q = [g.pick(f"{p} earns {g.money(inc)} a month.", f"Every month {p} gets {g.money(inc)}."),
         g.pick(f"{p.He} pays {g.money(rent)} for rent, {g.money(food)} for food and {g.money(other)} for the rest.",
                f"Rent is {g.money(rent)}, food is {g.money(food)}, and other costs are {g.money(other)}."),
         g.pick(f"How much can {p.he} save each month?", "How many dollars are left every month?")]
    t = rent + food + other
    s = [f"The costs are [[{rent}+{food}+{other}]] dollars.", g.pick(f"{p} saves [[{inc}-{t}]] dollars.", f"So [[{inc}-{t}]] dollars are left.")]
    return q, s, inc - t


@template
def machine_output(g):
    x, (xs, _) = g.pick("machine", "printer", "robot", "press"), g.of(GOODS)
    r, h, bad = g.i(5, 40), g.i(2, 9), g.i(2, 12)
    bad, days = min(bad, r * h - 1), g.i(2, 5)
    q = [g.pick(f"A {x} makes {r} {xs} an hour and runs {g.num(h)} hours a day.", f"Every hour a {x} makes {r} {xs}. It runs for {g.num(h)} hours a day."),
         g.pick(f"Each day {g.num(bad)} of the {xs} are thrown away.", f"Every day {g.num(bad)} {xs} are broken."),
         g.pick(f"How many good {xs} does it make in {g.num(days)} days?", f"How many good {xs} are there after {g.num(days)} days?")]
    s = [f"In a day the {x} makes [[{r}*{h}]] {xs}.", f"Of these [[{r*h}-{bad}]] are good.", f"In {days} days that is [[{r*h-bad}*{days}]] {xs}."]
    return q, s, (r * h - bad) * days


@template
def phone_plan(g):
    p = g.person()
    base, per, n, k = g.i(5, 40), g.i(1, 6), g.i(2, 20), g.i(2, 6)
    unit, of = g.pick(("gigabyte", "data"), ("hour", "calls"), ("movie", "films"))
    q = [g.pick(f"{p}'s phone plan costs {g.money(base)} a month plus {g.money(per)} for each {unit}.", f"Each month {p} pays {g.money(base)} and {g.money(per)} more per {unit}."),
         g.pick(f"{p.He} uses {n} {unit}s every month.", f"Every month {p.he} needs {n} {unit}s."),
         g.pick(f"How much does {p.he} pay in {g.num(k)} months?", f"What does the plan cost {p.him} in {g.num(k)} months?")]
    s = [f"The {unit}s cost [[{n}*{per}]] dollars a month.", f"A month costs [[{base}+{n*per}]] dollars.", f"In {k} months {p} pays [[{base+n*per}*{k}]] dollars."]
    return q, s, (base + n * per) * k


@template
def height_chain(g):
    p, o, t = g.person(), g.person(), g.person()
    a, d1, d2 = g.i(110, 180), g.i(2, 25), g.i(2, 25)
    q = [f"{p} is {a} centimeters tall.", f"{o} is {g.num(d1)} centimeters shorter than {p}.", f"{t} is {g.num(d2)} centimeters taller than {o}.",
         g.pick(f"How tall is {t}?", f"What is the height of {t} in centimeters?")]
    s = [f"{o} is [[{a}-{d1}]] centimeters tall.", f"{t} is [[{a-d1}+{d2}]] centimeters tall."]
    return q, s, a - d1 + d2


@template
def apples_baskets(g):
    p, (xs, x) = g.person(), g.of(FRUIT)
    tr, per, rot = g.i(3, 9), g.i(8, 30), g.i(2, 9)
    b = g.pick(2, 3, 4, 5, 6)
    tot = tr * per
    rot = rot + (tot - rot) % b
    good = tot - rot
    q = [g.pick(f"{p} has {g.num(tr)} {x} trees, and every tree gives {per} {xs}.", f"From each of {g.num(tr)} trees {p} picks {per} {xs}."),
         g.pick(f"{g.num(rot).capitalize()} of them are bad.", f"{p.He} throws away {g.num(rot)} bad ones."),
         g.pick(f"The good ones go into {g.num(b)} baskets, the same number in each.", f"{p.He} divides the good ones evenly among {g.num(b)} baskets."),
         g.pick(f"How many {xs} are in each basket?", f"How many {xs} does every basket hold?")]
    s = [f"{p} picks [[{tr}*{per}]] {xs}.", f"Of these [[{tot}-{rot}]] are good.", f"Each basket holds [[{good}/{b}]] {xs}."]
    return q, s, good // b


@template
def game_points(g):
    p = g.person()
    w, l, n1, n2 = g.i(3, 12), g.i(1, 5), g.i(3, 12), g.i(1, 6)
    n2 = min(n2, (n1 * w - 1) // l)
    b = g.i(2, 20)
    q = [g.pick(f"In a game a win gives {g.num(w)} points and a loss costs {g.num(l)} points.", f"You get {g.num(w)} points for a win and lose {g.num(l)} points for a loss."),
         g.pick(f"{p} wins {g.num(n1)} times and loses {g.num(n2)} times.", f"{p} has {g.num(n1)} wins and {g.num(n2)} losses."),
         g.pick(f"{p.He} also gets a bonus of {g.num(b)} points.", f"A bonus adds {g.num(b)} points."),
         g.pick(f"How many points does {p.he} have?", f"What is {p.his} final score?")]
    s = [f"The wins give [[{n1}*{w}]] points.", f"The losses cost [[{n2}*{l}]] points.", f"That makes [[{n1*w}-{n2*l}]] points.",
         f"With the bonus it is [[{n1*w-n2*l}+{b}]] points."]
    return q, s, n1 * w - n2 * l + b


@template
def rope_pieces(g):
    p = g.person()
    n, ln, used = g.i(3, 15), g.i(2, 9), g.i(2, 20)
    t = n * ln + used
    what = g.pick("rope", "ribbon", "wire", "cloth", "string")
    q = [g.pick(f"{p} has {t} meters of {what}.", f"A roll of {what} is {t} meters long. It belongs to {p}."),
         g.pick(f"{p.He} uses {g.num(used)} meters for a project.", f"First {p.he} cuts off {g.num(used)} meters."),
         g.pick(f"The rest is cut into pieces of {g.num(ln)} meters.", f"Then {p.he} cuts the rest into {ln} meter pieces."),
         g.pick("How many pieces are there?", f"How many pieces does {p.he} get?")]
    s = [f"After the first cut [[{t}-{used}]] meters are left.", f"That gives [[{t-used}/{ln}]] pieces."]
    return q, s, n


@template
def day_hours(g):
    p = g.person()
    sl, wk, mt = g.i(6, 9), g.i(4, 8), g.i(1, 3)
    k = g.pick(2, 3, 5, 7)
    left = 24 - sl - wk - mt
    q = [g.pick(f"{p} sleeps {g.num(sl)} hours, works {g.num(wk)} hours and needs {g.num(mt)} hours for meals each day.",
                f"Each day {p} spends {g.num(sl)} hours sleeping, {g.num(wk)} hours working and {g.num(mt)} hours eating."),
         g.pick(f"The rest of the 24 hours is free.", f"All other hours of the day are free time."),
         g.pick(f"How many free hours does {p.he} have in {g.num(k)} days?", f"How much free time does {p.he} get in {g.num(k)} days, in hours?")]
    s = [f"Each day [[{sl}+{wk}+{mt}]] hours are taken.", f"So [[24-{sl+wk+mt}]] hours are free.", f"In {k} days that is [[{left}*{k}]] hours."]
    return q, s, left * k


@template
def water_bottles(g):
    p = g.person()
    n, d, price, pack = g.i(2, 6), g.i(5, 14), g.i(2, 9), g.pick(2, 3, 4, 5, 6)
    d = d + (pack - (n * d) % pack) % pack if (n * d) % pack == 0 else d
    t = n * d
    ex = (pack - t % pack) % pack
    q = [g.pick(f"{p}'s family drinks {g.num(n)} bottles of {g.pick('water', 'milk', 'juice')} a day.", f"Every day {g.num(n)} bottles are used in {p}'s house."),
         g.pick(f"They plan for {d} days" + (f" and want {g.num(ex)} spare bottles." if ex else "."), f"{p} shops for {d} days" + (f" and takes {g.num(ex)} extra bottles." if ex else ".")),
         g.pick(f"A pack has {g.num(pack)} bottles and costs {g.money(price)}.", f"Packs of {g.num(pack)} bottles cost {g.money(price)} each."),
         g.pick("How much do they pay?", "How many dollars do the bottles cost?")]
    s = [f"They use [[{n}*{d}]] bottles."]
    if ex:
        s.append(f"With the extra ones that is [[{t}+{ex}]] bottles.")
    s += [f"That is [[{t+ex}/{pack}]] packs.", f"They cost [[{(t+ex)//pack}*{price}]] dollars."]
    return q, s, (t + ex) // pack * price


@template
def team_sum(g):
    p, o, t = g.person(), g.person(), g.person()
    sp = g.pick("goals", "points", "medals", "laps", "runs")
    a, k, d = g.i(4, 25), g.i(2, 4), g.i(2, 9)
    w = {2: "twice", 3: "three times", 4: "four times"}[k]
    q = [f"{p} has {a} {sp}.", f"{o} has {w} as many {sp} as {p}.", f"{t} has {g.num(d)} fewer {sp} than {o}.",
         g.pick(f"How many {sp} do the three have together?", f"What is the total number of {sp}?")]
    s = [f"{o} has [[{a}*{k}]] {sp}.", f"{t} has [[{a*k}-{d}]] {sp}.", f"Together they have [[{a}+{a*k}+{a*k-d}]] {sp}."]
    if a * k <= d:
        return team_sum(g)
    return q, s, a + 2 * a * k - d


@template
def loan(g):
    p, o = g.person(), g.person()
    n, m, first = g.i(3, 12), g.i(5, 30), g.i(10, 60)
    t = n * m + first
    q = [g.pick(f"{p} borrows {g.money(t)} from {o}.", f"{o} lends {p} {g.money(t)}."),
         g.pick(f"{p.He} pays back {g.money(first)} at once.", f"Right away {p.he} returns {g.money(first)}."),
         g.pick(f"{p.He} pays the rest in {g.num(n)} equal parts.", f"The rest is paid in {g.num(n)} equal payments."),
         g.pick("How many dollars is each part?", "How much is each payment?")]
    s = [f"After the first payment {p} owes [[{t}-{first}]] dollars.", f"Each payment is [[{t-first}/{n}]] dollars."]
    return q, s, m


@template
def lost_and_found(g):
    p, (xs, _) = g.person(), g.of(THINGS)
    a, b, c, d = g.i(20, 90), g.i(3, 18), g.i(3, 18), g.i(3, 18)
    q = [g.pick(f"{p} had {a} {xs}.", f"Last week {p} had {a} {xs}."), f"{p.He} lost {g.num(b)} at the {g.of(PLACES)}.",
         f"{g.pick('An uncle', 'A friend', 'A neighbor', 'An aunt')} gave {p.him} {g.num(c)} more.",
         f"Then {p.he} bought {g.num(d)} at {g.of(SHOPS)}.", g.pick(f"How many {xs} does {p.he} have now?", f"How many {xs} does {p} have in the end?")]
    s = [f"After the loss {p.he} has [[{a}-{b}]] {xs}.", f"With the gift {p.he} has [[{a-b}+{c}]] {xs}.", f"Now {p.he} has [[{a-b+c}+{d}]] {xs}."]
    return q, s, a - b + c + d


@template
def rectangle_tiles(g):
    p = g.person()
    l, w, price = g.i(3, 15), g.i(3, 10), g.i(2, 6)
    have = g.i(1, min(20, l * w - 1))
    room = g.pick("kitchen", "hall", "bathroom", "terrace", "cellar")
    q = [g.pick(f"{p}'s {room} is {l} meters long and {w} meters wide.", f"A {room} measures {l} meters by {w} meters. {p} wants new tiles there."),
         g.pick("One tile covers one square meter.", "Each tile is one square meter."),
         g.pick(f"{p.He} has {g.num(have)} tiles already, and a new tile costs {g.money(price)}.", f"There are {g.num(have)} tiles left from before. A new one costs {g.money(price)}."),
         g.pick("How much do the missing tiles cost?", f"How many dollars does {p.he} pay for the missing tiles?")]
    s = [f"The {room} has [[{l}*{w}]] square meters.", f"{p} needs [[{l*w}-{have}]] more tiles.", f"They cost [[{l*w-have}*{price}]] dollars."]
    return q, s, (l * w - have) * price


@template
def growing_plant(g):
    p, fl = g.person(), g.pick("sunflower", "bean plant", "young tree", "vine", "tomato plant")
    a, r, k, cut = g.i(10, 60), g.i(2, 12), g.i(2, 9), g.i(2, 10)
    q = [g.pick(f"{p}'s {fl} is {a} centimeters high.", f"{p} has a {fl} with a height of {a} centimeters."),
         g.pick(f"It grows {g.num(r)} centimeters a week.", f"Every week it gets {g.num(r)} centimeters higher."),
         g.pick(f"After {g.num(k)} weeks {p} cuts off {g.num(cut)} centimeters.", f"When {g.num(k)} weeks are over, {p.he} cuts it by {g.num(cut)} centimeters."),
         g.pick("How high is it then?", "What is its height after that, in centimeters?")]
    s = [f"In {k} weeks it grows [[{r}*{k}]] centimeters.", f"It is then [[{a}+{r*k}]] centimeters high.", f"After the cut it is [[{a+r*k}-{cut}]] centimeters high."]
    return q, s, a + r * k - cut


@template
def percent_of_group(g):
    pc = g.pick(10, 20, 25, 30, 40, 50, 60, 75)
    t = g.i(1, 10) * 20
    sp, s2 = g.pick(("play chess", "sing"), ("like tea", "like coffee"), ("walk to school", "take the bus"), ("have a pet", "have no pet"))
    where = g.pick("school", "club", "village", "company")
    a = t * pc // 100
    rest = t - a
    m = g.i(1, 9)
    q = [g.pick(f"There are {t} people in a {where}.", f"A {where} has {t} members."), f"{pc}% of them {sp}.", f"The others {s2}.",
         f"Then {g.num(m)} more people who {s2} join the {where}.",
         f"How many people who {s2} are there now?"]
    s = [f"Of the {t} people, [[{t}*{pc}/100]] {sp}.", f"So [[{t}-{a}]] people {s2}.", f"Now [[{rest}+{m}]] people {s2}."]
    return q, s, rest + m


DISTRACT = [
    lambda g: f"{g.person()} is {g.i(5, 60)} years old.",
    lambda g: f"It is {g.i(5, 30)} degrees outside.",
    lambda g: f"The {g.of(PLACES)} opened {g.i(2, 40)} years ago.",
    lambda g: f"{g.person()} likes {g.of(HOBBIES)}.",
    lambda g: f"The {g.of(PLACES)} is {g.i(2, 20)} kilometers away.",
    lambda g: f"It is a {g.pick('sunny', 'rainy', 'cold', 'windy')} {g.of(DAYS)}.",
    lambda g: f"{g.person()} has {g.i(2, 5)} brothers.",
    lambda g: f"The weather is {g.pick('good', 'bad', 'warm', 'nice')} today.",
    lambda g: f"A {g.of(GOODS)[1]} weighs {g.i(2, 9)} pounds.",
    lambda g: f"The {g.of(PLACES)} closes at {g.i(4, 9)} in the evening.",
]

CALC = re.compile(r"\[\[([0-9+*/-]+)\]\]")


def value_of(expr):
    """Exact integer value; anything uneven or negative is a broken template."""
    v = eval(expr, {"__builtins__": {}})  # digits and operators only, by CALC
    n = round(v)
    assert abs(v - n) < 1e-9 and n >= 0, expr
    return n


def gsm_step(step):
    return CALC.sub(lambda m: f"{m[1]} = <<{m[1]}={value_of(m[1])}>>{value_of(m[1])}", step)


def plain_step(step):
    def show(m):
        return re.sub(r"([+*/-])", r" \1 ", m[1]) + f" = {value_of(m[1])}"
    return CALC.sub(show, step)


class Problem:
    def __init__(self, question, steps, answer, kind):
        self.question, self.steps, self.answer, self.kind = question, steps, answer, kind

    def gsm_answer(self):
        return "\n".join(gsm_step(s) for s in self.steps) + f"\n#### {self.answer}"


def held_out(question):
    """One in 25 problems, by a hash of its names and numbers, never enters the training data."""
    key = " ".join(sorted(re.findall(r"[A-Z][a-z]+|\d+", question)))
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % 25 == 0


def make_problem(rng, test=False):
    """A problem of the training side (test=False) or of the held-out side (test=True)."""
    while True:
        g = G(rng)
        fn = g.of(TEMPLATES)
        q, s, n = fn(g)
        if rng.random() < 0.25:
            q = list(q)
            q.insert(rng.randrange(0, len(q)), g.of(DISTRACT)(g))
        question = " ".join(q)
        question = question[0].upper() + question[1:]
        if held_out(question) == test:
            return Problem(question, [x[0].upper() + x[1:] for x in s], n, fn.__name__)


if __name__ == "__main__":
    rng = random.Random(1)
    print(len(TEMPLATES), "templates")
    for _ in range(12):
        p = make_problem(rng)
        print(f"Question: {p.question}\nAnswer: {p.gsm_answer()}\n")
