"""Small talk, stories and plain prose from our own grammar.

Entities (a person, a place, a pet, the weather ...) are drawn first and stay the same through a
text; the sentences around them are drawn anew each time. So the text hangs together, and yet the
next sentence is seldom certain: speculation has something to be wrong about.
"""
import random

from words import (ADJECTIVES, ANIMALS, BIG_GOODS, CITIES, COLORS, DAYS, DISHES, FEMALE, FLOWERS,
                   FOODS, FRUIT, HOBBIES, INGREDIENTS, INSTRUMENTS, JOBS, LANGUAGES, MALE,
                   MATERIALS, MONTHS, MOODS, NATURE, PETS, PLACES, SPORTS, SUBJECTS, THINGS, TREES,
                   WEATHER)


class Scene:
    """The entities of one text, for `{slots}`."""

    def __init__(self, r):
        self.r = r
        female = r.random() < 0.5
        female2 = r.random() < 0.5
        ingr = r.sample(INGREDIENTS, 2)
        hob = r.sample(HOBBIES, 2)
        dish = r.sample(DISHES, 2)
        city = r.sample(CITIES, 2)
        nature = r.sample(NATURE, 2)
        adj = r.sample(ADJECTIVES, 3)
        place = r.sample(PLACES, 2)
        pet = r.choice(PETS)
        self.v = {
            "name": r.choice(FEMALE if female else MALE), "he": "she" if female else "he",
            "his": "her" if female else "his", "him": "her" if female else "him",
            "He": "She" if female else "He", "His": "Her" if female else "His",
            "friend": r.choice(FEMALE if female2 else MALE),
            "fhe": "she" if female2 else "he", "Fhe": "She" if female2 else "He",
            "hobby": hob[0], "hobby2": hob[1], "dish": dish[0], "dish2": dish[1], "city": city[0],
            "city2": city[1], "nature": nature[0], "nature2": nature[1], "adj": adj[0], "adj2": adj[1],
            "adj3": adj[2], "place": place[0], "place2": place[1], "pet": pet[0], "pets": pet[1],
            "day": r.choice(DAYS), "month": r.choice(MONTHS), "job": r.choice(JOBS),
            "color": r.choice(COLORS), "weather": r.choice(WEATHER), "mood": r.choice(MOODS),
            "tree": r.choice(TREES), "flower": r.choice(FLOWERS), "ingr": ingr[0],
            "ingr2": ingr[1], "instr": r.choice(INSTRUMENTS), "lang": r.choice(LANGUAGES),
            "sport": r.choice(SPORTS), "subject": r.choice(SUBJECTS), "thing": r.choice(THINGS)[1],
            "things": r.choice(THINGS)[0], "fruit": r.choice(FRUIT)[0], "food": r.choice(FOODS)[0],
            "animal": r.choice(ANIMALS)[1], "animals": r.choice(ANIMALS)[0], "gift": r.choice(BIG_GOODS),
            "material": r.choice(MATERIALS), "n": str(r.randint(2, 20)), "k": str(r.randint(2, 9)),
        }
        for key in ("adj", "adj2", "adj3", "animal", "instr", "gift", "thing", "pet", "nature", "job"):
            word = self.v[key]
            self.v["a_" + key] = ("an " if word[0] in "aeiou" else "a ") + word

    def say(self, *options):
        text = self.r.choice(options).format_map(self.v)
        return text[0].upper() + text[1:]

    def some(self, k, options):
        return [self.say(o) for o in self.r.sample(options, min(k, len(options)))]


# ---- prose -------------------------------------------------------------------------------------
OPENINGS = [
    "One {weather} morning {name} walked to the {place}.", "{name} lived in a small house near the {nature}.",
    "It was {day}, and {name} had nothing to do.", "Long ago {a_adj} {nature} lay behind the {place}.",
    "In {month} the {place} is {adj} and {adj2}.", "Every {day} {name} goes to the {place} with {friend}.",
    "{name} is {a_job} in {city}.", "There was once {a_adj} {thing} that nobody wanted.",
    "The road to {city} leads over {a_adj} {nature}.", "When {name} was young, {he} had {a_pet}.",
    "Nobody in {city} knew where the {adj} {thing} came from.", "On a {weather} evening in {month}, {friend} called {name}.",
    "The {place} of the village is very {adj}.", "{name} and {friend} wanted to see the {nature} before winter.",
    "My neighbor {name} keeps {k} {animals} and one {pet}.", "At the end of the street stands {a_adj} {tree} tree.",
]
MIDDLES = [
    "{He} carried {a_adj} bag and a bottle of water.", "The air smelled of {ingr} and {flower}.",
    "{friend} was already there and looked {mood}.", "They talked about {hobby} for a long time.",
    "{name} felt {mood}, but {he} did not say why.", "A {color} bird sat on the {tree} tree.",
    "Nobody spoke, and only the {nature} could be heard.", "{He} found {a_thing} under a {color} stone.",
    "The door was made of {material} and opened slowly.", "For {k} days it had been {weather}.",
    "{friend} told a story about {a_adj2} {animal}.", "{He} bought some {fruit} and a bag of {food}.",
    "People said that the {nature} was {adj2} at night.", "The {pet} slept under the table.",
    "{He} wanted to learn {lang} and play the {instr}.", "In the kitchen {friend} was making {dish}.",
    "The old {job} shook {his} hand and smiled.", "There were {n} people in front of the {place2}.",
    "{name} had never seen so many {animals} before.", "Then the lights went out, and the {place2} became quiet.",
    "They counted the {things} twice and wrote the number down.", "Some of the {things} were {color}, others were {adj3}.",
    "{He} thought of {city} and of the {adj2} {nature2} there.", "{friend} gave {him} {a_adj3} {thing} as a present.",
    "The wind was cold, so they went inside.", "{He} opened the window and listened to the {instr}.",
    "After lunch they walked along the {nature}.", "It took them {k} hours to reach the {place2}.",
    "The water of the {nature} was {adj2} and {color}.", "{name} asked whether the {adj3} {thing} was for sale.",
]
LINKS = ["Then", "Later", "Soon", "Suddenly", "After a while", "In the evening", "Before long", "Meanwhile", "At noon", "The next day"]
LINKED = [
    "{name} saw {friend} near the {place2}", "it began to rain", "a {color} {animal} ran across the {nature2}",
    "they heard the sound of {a_instr}", "{he} decided to go home", "{friend} came back with {k} {food}",
    "the {place2} was full of people", "{he} lost {his} {thing}", "they sat down and ate {dish}",
    "{he} wrote a letter to {friend}", "the {pet} was gone", "they found the way to the {nature2}",
    "the {job} asked them for help", "{he} remembered the {adj} {thing}", "snow fell on the {nature2}",
]
ENDINGS = [
    "In the end {name} was {mood} and went to bed early.", "Since that day the {place} has never been the same.",
    "{He} kept the {thing} for the rest of {his} life.", "And that is why {name} still likes {hobby}.",
    "They promised to meet again in {month}.", "When the sun went down, everyone was {mood}.",
    "{friend} laughed and said that it was only {a_thing}.", "Nobody ever asked about it again.",
    "From then on they went to the {place2} every {day}.", "It was a good day, and {name} knew it.",
]


def body(r, s, n):
    links = r.sample(LINKED, len(LINKED))
    return [f"{r.choice(LINKS)} {links.pop().format_map(s.v)}." if r.random() < 0.3 else s.say(m)
            for m in r.sample(MIDDLES, n)]


def prose(r, sentences=None):
    s = Scene(r)
    n = sentences or r.randint(3, 11)
    out = [s.say(*OPENINGS)]
    out += body(r, s, n)
    out.append(s.say(*ENDINGS))
    if n > 7 and r.random() < 0.5:
        cut = r.randint(3, len(out) - 3)
        return " ".join(out[:cut]) + "\n\n" + " ".join(out[cut:])
    return " ".join(out)


# ---- small talk --------------------------------------------------------------------------------
# topic: (ways to ask, first sentences, further sentences, closing sentences)
TALK = {
    "greet": (["Hi!", "Hello!", "Hello there.", "Good morning!", "Good evening!", "Hey, how are you?", "Hi, how are you today?", "How is it going?",
               "Hello, my name is {name}.", "Hi, I am {name} from {city}."],
              ["Hello! I am glad to hear from you.", "Hi! I am doing well, thank you.", "Good to see you!", "Hello! It is nice to meet you.", "Hi there!"],
              ["How can I help you today?", "I hope your {day} is going well.", "We can talk about {hobby} or anything else.", "Tell me what is on your mind.",
               "I was just thinking about {hobby2}.", "Do you have a question for me?"],
              ["What would you like to do?", "Just ask me anything.", "I am ready when you are.", "What shall we talk about?"]),
    "who": (["Who are you?", "What is your name?", "What can you do?", "Are you a person?", "Tell me about yourself."],
            ["I am a very small language model.", "My name is Nano, and I am a small model.", "I am Nano, a model with only a few million weights."],
            ["I can solve word problems with small numbers.", "I like short stories and simple questions.", "I can call tools when you give me some.",
             "I think step by step when a problem is hard.", "I do not know much about the world, but I try my best.", "I was made to test an inference engine."],
            ["What would you like to try?", "Give me a problem and see.", "Ask me something simple."]),
    "hobby": (["I want to start with {hobby}. Any tips?", "How do I get better at {hobby}?", "Tell me something about {hobby}.", "Is {hobby} hard to learn?",
               "What do you think about {hobby}?", "Why do people like {hobby}?", "My friend {name} loves {hobby}. Should I try it?"],
              ["{hobby} is a wonderful hobby.", "Many people enjoy {hobby} because it makes them {mood}.", "You can start with {hobby} at any age.",
               "I think {hobby} is a great idea.", "With {hobby} the first step is the hardest."],
              ["Start with {k} minutes a day and do more later.", "Find a friend who also likes {hobby}.", "There is often a group at the {place}.",
               "Do not buy too many things at the beginning.", "Watch how others do it and ask questions.", "A quiet {place2} is a good spot for it.",
               "It helps when you are {mood}.", "If you like {hobby2}, you will like this too.", "Write down what you learn every {day}.",
               "Be patient, because it takes time.", "Some {weather} days are perfect for it."],
              ["Have fun!", "Good luck with it!", "I am sure you will do well.", "Let me know how it goes.", "What made you think of {hobby}?"]),
    "cook": (["What can I cook tonight?", "How do I make {dish}?", "I have {ingr} and {ingr2}. What can I make?", "Do you know a good recipe for {dish}?",
              "What goes well with {dish}?", "{name} wants to eat {dish}. Can you help?"],
             ["How about {dish}?", "{dish} is easy to make.", "I would try {dish} with some {ingr}.", "For {dish} you need fresh {ingr}.", "That sounds tasty."],
             ["First cut the {ingr} into small pieces.", "Heat some {ingr2} in a pan.", "Let it cook for {n} minutes.", "Add salt and a little {ingr2}.",
              "Stir it well and taste it.", "You can serve it with {food}.", "A glass of water goes well with it.", "If you have time, make {dish2} as well.",
              "Keep the heat low so that nothing burns.", "Put some {ingr} on top at the end."],
             ["Enjoy your meal!", "It is ready in {n} minutes.", "Tell me how it tastes.", "That is enough for {k} people.", "Do you like it spicy?"]),
    "travel": (["I want to travel to {city}.", "What can I see in {city}?", "Is {city} nice in {month}?", "Should I go to {city} or {city2}?", "Tell me about {city}.",
                "Where should we go in {month}?", "{name} lives in {city}. Is it nice there?"],
               ["{city} is a lovely place.", "I would go to {city} in {month}.", "In {city} there is a lot to see.", "{city} is worth a trip.", "People say that {city} is {adj}."],
               ["Visit the {place} in the morning.", "The {place2} is {adj2} and not far away.", "Take a warm coat, because it can be {weather}.",
                "You can try {dish} at the market.", "Stay for at least {k} days.", "A walk along the {nature} is very nice.", "The trains are fast and clean.",
                "Many visitors like the {adj} {nature2}.", "Learn a few words of {lang} before you go.", "In the evening there is music with {a_instr}."],
               ["Have a good trip!", "When do you want to leave?", "Send me a postcard!", "You will like it.", "Do you travel alone?"]),
    "weather": (["It is so {weather} today.", "What should I do on a {weather} day?", "I do not like this {weather} weather.", "Do you like {month}?", "It was {weather} all week."],
                ["A {weather} day can be very nice.", "I know, {weather} weather is not for everyone.", "In {month} that happens a lot.", "Then it is time for {hobby}."],
                ["You could stay at home and make {dish}.", "Put on a {color} coat and go out anyway.", "The {nature} looks beautiful then.", "Call {name} and go to the {place}.",
                 "A book and a cup of tea help.", "By {day} it may be different.", "Your {pet} will not mind it.", "It is good for the {flower} in the garden."],
                ["What are your plans?", "It will pass.", "Make the best of it!", "Stay warm!"]),
    "feel": (["I feel {mood} today.", "I am a bit {mood}.", "Why am I so {mood}?", "My friend {name} is {mood}. What can I do?", "I had a long day and feel {mood}."],
             ["I understand that you feel {mood}.", "Thank you for telling me.", "It is fine to be {mood} sometimes.", "Everyone is {mood} now and then."],
             ["Take a short walk in the {place}.", "Maybe some {hobby} would be good.", "Talk with somebody you trust.", "Drink some water and rest for {n} minutes.",
              "Write down {k} good things of this day.", "Listening to {a_instr} can help.", "Tomorrow is another day.", "Do something for yourself, like making {dish}.",
              "Sleep is more important than we think.", "Call {friend} and talk about it."],
             ["What happened today?", "I am here to listen.", "Be kind to yourself.", "I hope it gets better soon.", "How does that sound?"]),
    "pet": (["I have {a_pet}.", "Should I get {a_pet}?", "My {pet} does not eat. What should I do?", "How do I take care of {a_pet}?", "What is a good name for my {pet}?", "Do {pets} like {fruit}?"],
            ["{pets} are great friends.", "A {pet} needs a lot of care.", "How nice that you have {a_pet}!", "I like {pets} very much.", "That is a good question about {pets}."],
            ["Give it fresh water every day.", "It needs a quiet place to sleep.", "Play with it for {n} minutes a day.", "You could call it {name}.", "A {color} blanket makes it happy.",
             "Ask a doctor if it gets worse.", "Do not give it too many {food}.", "{pets} like it when you talk to them.", "Some of them are afraid of {weather} weather.",
             "Take it to the {place} now and then."],
            ["How old is it?", "Have fun together!", "What color is it?", "It will thank you for it."]),
    "story": (["Tell me a story.", "Tell me a story about {name}.", "I cannot sleep. Tell me something.", "Write a short story about {a_adj} {nature}.", "Tell me a tale with {a_animal} in it.",
               "Make up a story about {name} and {friend}.", "Write a few lines about the {place}."], None, None, None),
    "gift": (["What should I give {name} for {his} birthday?", "I need a gift for my friend {name}.", "Is {a_gift} a good present?", "{name} likes {hobby}. What could I give {him}?"],
             ["A {gift} would be a nice present.", "If {name} likes {hobby}, think of something for that.", "You could give {him} {a_thing}.", "A gift does not have to be expensive."],
             ["Something made of {material} lasts long.", "Wrap it in {color} paper.", "Write a card with a few kind words.", "You can find it at the {place}.",
              "A trip to {city} is also a good idea.", "Homemade {food} are always welcome.", "Ask {friend} what {he} wants.", "{flower} in {color} look pretty too."],
             ["I am sure {he} will be {mood}.", "When is the birthday?", "That will be a surprise!", "How much do you want to spend?"]),
    "learn": (["How can I learn {lang}?", "How do I study {subject}?", "I have a test in {subject} on {day}.", "Is {lang} difficult?", "I want to play the {instr}.", "Give me advice for my {subject} class."],
              ["A little every day is better than a lot once a week.", "Good that you want to learn something new.", "It is easier than it looks.", "Make a plan for the next {k} weeks."],
              ["Learn {n} new words each day.", "Practice in the morning when you are not tired.", "Listen to songs and repeat them.", "Ask {name} to test you.", "Read simple texts about {hobby}.",
               "Make small cards with questions.", "Take a break after {n} minutes.", "Explain it to somebody else.", "Do not be afraid of mistakes.", "The {place} has good books about it.",
               "On {day} look at everything again."],
              ["You can do it!", "How much time do you have?", "Good luck!", "Start today.", "Soon it will be easy."]),
    "plan": (["What should I do this weekend?", "I am free on {day}. Any ideas?", "Plan my {day} for me.", "{name} visits me on {day}. What can we do?", "I am bored."],
             ["How about {hobby}?", "You could go to the {place} first.", "I have an idea for you.", "On {day} the {place} is {adj}.", "Let us make a plan."],
             ["In the morning you can make {dish}.", "After that take a walk to the {nature}.", "Meet {friend} at the {place2}.", "If it is {weather}, stay at home and try {hobby2}.",
              "At noon eat some {food}.", "In the evening play {sport} or rest.", "Leave some time to do nothing.", "Take your {pet} with you.", "Buy {fruit} at the market.",
              "Read a chapter of a good book."],
             ["Does that sound good?", "Enjoy it!", "What do you like best?", "Tell me about it later.", "It will be a nice day."]),
    "prefer": (["Do you like {color}?", "What is better, {hobby} or {hobby2}?", "{dish} or {dish2}?", "Would you rather live near {a_nature} or in {city}?", "What is your favorite {thing}?", "Do you prefer {sport}?"],
               ["That is hard to say.", "I think I prefer {hobby}.", "Both are good in their own way.", "I would choose {dish}.", "My answer changes every {day}."],
               ["On a {weather} day I would choose differently.", "{name} would say the opposite.", "The first one is more {adj}.", "It depends on how {mood} you are.", "Many people in {city} think so too.",
                "The other one takes {k} hours.", "You can also do both.", "I like things that are {adj2} and {color}.", "There is no wrong answer here."],
               ["What about you?", "And what do you prefer?", "Tell me your choice.", "Why do you ask?"]),
    "explain": (["What is {a_nature}?", "What does {a_job} do?", "What is {material} used for?", "Why is the sky blue?", "What happens in {month}?", "How does {a_instr} work?", "Explain {subject} to me."],
                ["That is a good question.", "Let me explain it in simple words.", "In short, it is something {adj}.", "There is a simple answer and a long one."],
                ["A {nature} is a part of nature, and it can be {adj} or {adj2}.", "A {job} works with people at the {place}.", "Things made of {material} can be very {adj}.",
                 "Light from the sun is made of many colors.", "In {month} the days become different.", "{instr} players move the air to make a sound.", "{subject} helps us to understand the world.",
                 "You can see it best near the {nature2}.", "Children learn about it in {subject} class.", "It took people many years to find out.", "A drawing would show it better than words."],
                ["Do you want to know more?", "Is that clear?", "Ask me if something is not clear.", "That is all I know."]),
    "thanks": (["Thank you!", "Thanks for your help.", "That was very helpful, thanks.", "Great, thank you so much.", "Goodbye!", "See you on {day}!", "I have to go now."],
               ["You are welcome!", "It was a pleasure.", "I am glad that I could help.", "Any time!", "Goodbye!"],
               ["Have a nice {day}.", "Say hello to {name} from me.", "Come back when you need something.", "Enjoy the {weather} weather.", "I hope you have a {adj} evening."],
               ["See you soon!", "Take care!", "Until next time."]),
}
TOPICS = list(TALK)
# How the reasoning names a topic.
LABEL = {"greet": "the greeting", "who": "myself", "hobby": "a hobby", "cook": "cooking", "travel": "a trip", "weather": "the weather",
         "feel": "feelings", "pet": "a pet", "story": "a story", "gift": "a present", "learn": "learning", "plan": "plans",
         "prefer": "a choice", "explain": "an explanation", "thanks": "the kind words"}
THINK = ["The user wants to talk about {t}. I will be friendly.", "A simple question. I answer in a few sentences.", "I should give some ideas about {t}.",
         "This is about {t}. No calculation is needed.", "I keep it short and kind.", "Let me think about {t} for a moment. I can name a few things and ask back."]


def turn(r):
    """(user, answer, topic) of one exchange."""
    s = Scene(r)
    topic = r.choice(TOPICS)
    asks, first, more, close = TALK[topic]
    user = s.say(*asks)
    if topic == "story":
        answer = story(r, s)
    else:
        parts = [s.say(*first)] if r.random() < 0.9 else []
        parts += s.some(r.randint(1, 5), more)
        if r.random() < 0.8:
            parts.append(s.say(*close))
        answer = " ".join(parts)
    if r.random() < 0.15:
        user = r.choice(("Hi. ", "Hello! ", "Please: ", "Well, ", "Good day. ")) + user
    return user, answer, LABEL[topic]


def story(r, s):
    n = r.randint(3, 10)
    out = [s.say(*OPENINGS)] + body(r, s, n) + [s.say(*ENDINGS)]
    return " ".join(out)


def chat_messages(r, turns=None):
    messages = []
    for _ in range(turns or r.choice((1, 1, 1, 2, 2, 3, 4))):
        u, a, t = turn(r)
        messages += [{"role": "user", "content": u},
                     {"role": "assistant", "reasoning_content": r.choice(THINK).format(t=t), "content": a}]
    return messages


def transcript(r):
    """Small talk as plain text, for completion without chat tokens."""
    a, b = r.choice((("User", "Assistant"), ("User", "Assistant"), tuple(r.sample(FEMALE + MALE, 2))))
    lines = []
    for _ in range(r.randint(1, 5)):
        u, x, _ = turn(r)
        lines += [(f"{a}: {u}\n{b}:", False), (f" {x}\n\n", True)]
    return lines


if __name__ == "__main__":
    rng = random.Random(2)
    for _ in range(3):
        print(prose(rng), "\n")
    for _ in range(12):
        print(*turn(rng)[:2], sep="\n  -> ")
