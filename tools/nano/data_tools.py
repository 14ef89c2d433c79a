"""Tool dialogues: declarations, requests, calls, results and final answers, from our own tables.

Each entry of TOOLS is one function: schema, ways to ask for it (with {slots} that become
arguments), and how its result reads. `dialogue` builds a finished conversation; `held_out` keeps one
in 25 argument sets away from training, so the evaluation asks for values never seen together.
"""
import hashlib
import json

from words import (CITIES, COLORS, CURRENCIES, DAYS, DISHES, FEMALE, FOODS, FRUIT, GOODS, HOBBIES,
                   INGREDIENTS, INSTRUMENTS, JOBS, LANGUAGES, MALE, MONTHS, PLACES, SPORTS,
                   SUBJECTS, WEATHER)


def names(r):
    return r.choice(r.choice((FEMALE, MALE)))


# Value makers by slot kind.
KIND = {
    "city": lambda r: r.choice(CITIES),
    "name": names,
    "day": lambda r: r.choice(DAYS),
    "month": lambda r: r.choice(MONTHS),
    "food": lambda r: r.choice(r.choice((FRUIT, FOODS)))[0],
    "good": lambda r: r.choice(GOODS)[0],
    "dish": lambda r: r.choice(DISHES),
    "place": lambda r: r.choice(PLACES),
    "hobby": lambda r: r.choice(HOBBIES),
    "subject": lambda r: r.choice(SUBJECTS),
    "job": lambda r: r.choice(JOBS),
    "lang": lambda r: r.choice(LANGUAGES),
    "cur": lambda r: r.choice(CURRENCIES),
    "color": lambda r: r.choice(COLORS),
    "sport": lambda r: r.choice(SPORTS),
    "instr": lambda r: r.choice(INSTRUMENTS),
    "ingr": lambda r: r.choice(INGREDIENTS),
    "small": lambda r: r.randint(1, 12),
    "num": lambda r: r.randint(2, 99),
    "big": lambda r: r.randint(10, 999),
    "time": lambda r: f"{r.randint(6, 22):02d}:{r.choice(('00', '15', '30', '45'))}",
    "unit": lambda r: r.choice(("celsius", "fahrenheit")),
    "room": lambda r: r.choice(("kitchen", "bedroom", "hall", "office", "garage", "bathroom")),
    "topic": lambda r: " ".join(r.sample(r.choice((SUBJECTS, HOBBIES, FOODS and DISHES)), 1)
                                + [r.choice(("news", "books", "rules", "history", "tips", "prices"))]),
    "phrase": lambda r: f"{r.choice(('where is', 'I like', 'we need', 'how old is', 'here is', 'I see'))} the {r.choice(PLACES)}",
    "text": lambda r: f"{r.choice(('see you', 'I will be late', 'please call me', 'the meeting is', 'dinner is ready', 'bring some ' + r.choice(FRUIT)[0]))} {r.choice(('on ' + r.choice(DAYS), 'tonight', 'at the ' + r.choice(PLACES), 'soon'))}",
}

# name, description, {param: (kind, schema, required)}, asks, result maker, reading of the result
# A request may leave optional slots out; the call then leaves them out too.
S, I = "string", "integer"
TOOLS = [
    ("get_weather", "Get the current weather of a city.",
     {"city": ("city", {"type": S, "description": "Name of the city"}, True),
      "unit": ("unit", {"type": S, "enum": ["celsius", "fahrenheit"]}, False)},
     ["What is the weather in {city}?", "How is the weather in {city} today?", "Tell me the weather in {city} in {unit}.",
      "Is it cold in {city} right now?", "I travel to {city}. What is the weather like there in {unit}?"],
     lambda r, a: {"sky": r.choice(WEATHER), "temperature": r.randint(-5, 35)},
     "It is {sky} in {city} with {temperature} degrees."),
    ("get_forecast", "Weather forecast of a city for the next days.",
     {"city": ("city", {"type": S, "description": "Name of the city"}, True),
      "days": ("small", {"type": I, "description": "How many days", "minimum": 1, "maximum": 14}, True)},
     ["Give me a {days} day forecast for {city}.", "What will the weather be in {city} for the next {days} days?",
      "I need the forecast of {city} for {days} days."],
     lambda r, a: {"outlook": r.choice(WEATHER)}, "The next {days} days in {city} will be mostly {outlook}."),
    ("set_timer", "Start a timer.",
     {"minutes": ("num", {"type": I, "description": "Length in minutes", "minimum": 1}, True),
      "label": ("dish", {"type": S, "description": "What the timer is for"}, False)},
     ["Set a timer for {minutes} minutes.", "Please start a {minutes} minute timer for the {label}.",
      "Wake me in {minutes} minutes.", "The {label} needs {minutes} minutes. Set a timer."],
     lambda r, a: {"status": "started"}, "The timer for {minutes} minutes is running."),
    ("set_alarm", "Set an alarm clock.",
     {"time": ("time", {"type": S, "description": "Time as HH:MM"}, True), "day": ("day", {"type": S}, False)},
     ["Wake me up at {time}.", "Set an alarm for {time} on {day}.", "I have to get up at {time} on {day}.", "Alarm at {time}, please."],
     lambda r, a: {"status": "set"}, "The alarm is set for {time}."),
    ("convert_currency", "Convert an amount of money.",
     {"amount": ("big", {"type": "number", "description": "Amount to convert"}, True),
      "from": ("cur", {"type": S, "description": "Currency code"}, True), "to": ("cur", {"type": S, "description": "Currency code"}, True)},
     ["How much is {amount} {from} in {to}?", "Convert {amount} {from} to {to}.", "Please change {amount} {from} into {to}."],
     lambda r, a: {"result": r.randint(5, 999)}, "{amount} {from} are {result} {to}."),
    ("calculate", "Compute an arithmetic expression.",
     {"expression": ("expr", {"type": S, "description": "Expression to compute"}, True)},
     ["What is {expression}?", "Compute {expression} for me.", "Please calculate {expression}.", "I need the value of {expression}."],
     lambda r, a: {"value": eval(a["expression"])}, "{expression} is {value}."),
    ("send_message", "Send a text message to a contact.",
     {"to": ("name", {"type": S, "description": "Receiver"}, True), "text": ("text", {"type": S, "description": "Text of the message"}, True)},
     ["Send {to} a message: {text}", "Tell {to} this: {text}", "Write to {to}: {text}", "Text {to} the following: {text}"],
     lambda r, a: {"status": "sent"}, "Your message to {to} was sent."),
    ("create_event", "Add an event to the calendar.",
     {"title": ("hobby", {"type": S, "description": "Title of the event"}, True), "day": ("day", {"type": S}, True),
      "time": ("time", {"type": S, "description": "Start as HH:MM"}, False)},
     ["Put {title} in my calendar on {day}.", "Add {title} on {day} at {time}.", "I have {title} on {day} at {time}. Please note it.",
      "Create an event called {title} for {day}."],
     lambda r, a: {"id": r.randint(100, 999)}, "I added {title} on {day}."),
    ("list_events", "List the calendar events of a day.",
     {"day": ("day", {"type": S}, True)},
     ["What do I have on {day}?", "Show my plans for {day}.", "Is there anything in my calendar on {day}?"],
     lambda r, a: {"events": [r.choice(HOBBIES)]}, "On {day} you have {events}."),
    ("find_recipe", "Find a recipe for a dish.",
     {"dish": ("dish", {"type": S, "description": "Name of the dish"}, True), "people": ("small", {"type": I, "default": 2}, False)},
     ["Find a recipe for {dish}.", "I want to cook {dish} for {people} people. Find a recipe.", "How do I make {dish}?",
      "Look up {dish} for {people} people."],
     lambda r, a: {"ingredients": r.sample(INGREDIENTS, 2)}, "For {dish} you need {ingredients}."),
    ("search_web", "Search the web.",
     {"query": ("topic", {"type": S, "description": "What to search for"}, True), "limit": ("small", {"type": I, "minimum": 1}, False)},
     ["Search the web for {query}.", "Find {query} online.", "Look for {query} and give me {limit} results.", "Can you search for {query}?"],
     lambda r, a: {"results": r.randint(2, 90)}, "I found {results} pages about {query}."),
    ("translate", "Translate text into another language.",
     {"text": ("phrase", {"type": S, "description": "Text to translate"}, True), "language": ("lang", {"type": S}, True)},
     ["Translate \"{text}\" into {language}.", "How do I say \"{text}\" in {language}?", "What is \"{text}\" in {language}?"],
     lambda r, a: {"status": "ok", "id": r.randint(10, 99)}, "The translation into {language} is ready."),
    ("book_table", "Reserve a table in a restaurant.",
     {"people": ("small", {"type": I, "minimum": 1, "maximum": 20}, True), "day": ("day", {"type": S}, True), "time": ("time", {"type": S}, True)},
     ["Book a table for {people} on {day} at {time}.", "Reserve a table for {people} people, {day} at {time}.",
      "We are {people} people and want to eat out on {day} at {time}."],
     lambda r, a: {"status": r.choice(("booked", "full"))}, "The table for {people} on {day} at {time} is {status}."),
    ("find_flights", "Search flights between two cities.",
     {"origin": ("city", {"type": S}, True), "destination": ("city", {"type": S}, True), "day": ("day", {"type": S}, False)},
     ["Find a flight from {origin} to {destination}.", "I need to fly from {origin} to {destination} on {day}.",
      "Are there flights from {origin} to {destination} on {day}?", "Show flights from {origin} to {destination}."],
     lambda r, a: {"price": r.randint(50, 900), "time": KIND["time"](r)}, "A flight from {origin} to {destination} leaves at {time} and costs {price} dollars."),
    ("train_times", "Departures of trains.",
     {"from": ("city", {"type": S}, True), "to": ("city", {"type": S}, True)},
     ["When does a train go from {from} to {to}?", "Trains from {from} to {to}, please.", "I want to take the train from {from} to {to}."],
     lambda r, a: {"departure": KIND["time"](r)}, "The next train from {from} to {to} leaves at {departure}."),
    ("play_music", "Play music.",
     {"instrument": ("instr", {"type": S, "description": "Instrument to hear"}, True), "volume": ("num", {"type": I, "minimum": 0, "maximum": 100}, False)},
     ["Play some {instrument} music.", "Play {instrument} music at volume {volume}.", "I want to hear the {instrument}."],
     lambda r, a: {"status": "playing"}, "Now playing {instrument} music."),
    ("set_light", "Change a lamp.",
     {"room": ("room", {"type": S}, True), "color": ("color", {"type": S}, False), "on": ("bool", {"type": "boolean"}, False)},
     ["Make the light in the {room} {color}.", "Turn the {room} light {color}.", "I want {color} light in the {room}."],
     lambda r, a: {"status": "ok"}, "The light in the {room} is changed."),
    ("set_heating", "Set the temperature of a room.",
     {"room": ("room", {"type": S, "description": "Which room"}, True), "degrees": ("small", {"type": I, "description": "Target temperature"}, True)},
     ["Set the {room} to {degrees} degrees.", "Make it {degrees} degrees in the {room}.", "The {room} should have {degrees} degrees."],
     lambda r, a: {"status": "ok"}, "The {room} is set to {degrees} degrees."),
    ("add_to_list", "Put an item on the shopping list.",
     {"item": ("food", {"type": S}, True), "count": ("small", {"type": I, "default": 1}, False)},
     ["Put {item} on my shopping list.", "Add {count} {item} to the list.", "We need {count} {item}. Put them on the list.", "Please add {item} to my list."],
     lambda r, a: {"items": r.randint(2, 20)}, "{item} is on the list now."),
    ("order_food", "Order food for delivery.",
     {"item": ("food", {"type": S}, True), "count": ("small", {"type": I, "minimum": 1}, True), "place": ("place", {"type": S}, False)},
     ["Order {count} {item}.", "I want {count} {item} from the {place}.", "Get me {count} {item}, please.", "Please order {count} {item} from the {place}."],
     lambda r, a: {"minutes": r.randint(10, 60)}, "Your {item} will arrive in {minutes} minutes."),
    ("get_time", "Current time in a city.",
     {"city": ("city", {"type": S}, True)},
     ["What time is it in {city}?", "Tell me the time in {city}.", "How late is it in {city} now?"],
     lambda r, a: {"time": KIND["time"](r)}, "It is {time} in {city}."),
    ("get_distance", "Distance between two cities in kilometers.",
     {"a": ("city", {"type": S, "description": "First city"}, True), "b": ("city", {"type": S, "description": "Second city"}, True)},
     ["How far is it from {a} to {b}?", "What is the distance from {a} to {b}?", "How many kilometers are between {a} and {b}?"],
     lambda r, a: {"km": r.randint(50, 999)}, "From {a} to {b} it is {km} kilometers."),
    ("find_jobs", "Search open jobs.",
     {"job": ("job", {"type": S}, True), "city": ("city", {"type": S}, False)},
     ["Find work as a {job}.", "Are there jobs for a {job} in {city}?", "I am looking for a job as a {job} in {city}."],
     lambda r, a: {"count": r.randint(1, 60)}, "There are {count} open jobs for a {job}."),
    ("get_grade", "Look up the grade of a student.",
     {"student": ("name", {"type": S}, True), "subject": ("subject", {"type": S}, True)},
     ["What grade does {student} have in {subject}?", "Look up the {subject} grade of {student}.", "How good is {student} in {subject}?"],
     lambda r, a: {"grade": r.choice("ABCD")}, "{student} has grade {grade} in {subject}."),
    ("stock_count", "How many pieces of a product are in store.",
     {"product": ("good", {"type": S}, True), "color": ("color", {"type": S}, False)},
     ["How many {product} do we have?", "How many {color} {product} are in store?", "Check the stock of {product}.", "Are there any {color} {product} left?"],
     lambda r, a: {"count": r.randint(0, 200)}, "There are {count} {product} in store."),
    ("update_price", "Change the price of a product.",
     {"product": ("good", {"type": S}, True), "price": ("num", {"type": "number", "minimum": 0}, True)},
     ["Change the price of {product} to {price} dollars.", "{product} should cost {price} dollars from now on.", "Set the price of {product} to {price}."],
     lambda r, a: {"status": "ok"}, "{product} now cost {price} dollars."),
    ("find_contact", "Find the phone number of a person.",
     {"name": ("name", {"type": S}, True)},
     ["What is the phone number of {name}?", "Find {name} in my contacts.", "I need to call {name}. What is the number?"],
     lambda r, a: {"phone": f"{r.randint(200, 999)}-{r.randint(1000, 9999)}"}, "The number of {name} is {phone}."),
    ("match_result", "Result of the last match of a city's team.",
     {"sport": ("sport", {"type": S}, True), "city": ("city", {"type": S}, True)},
     ["How did {city} play in {sport}?", "What was the last {sport} result of {city}?", "Did {city} win in {sport}?"],
     lambda r, a: {"score": f"{r.randint(0, 9)}:{r.randint(0, 9)}"}, "The last {sport} match of {city} ended {score}."),
    ("add_note", "Save a note.",
     {"text": ("text", {"type": S, "description": "Text of the note"}, True)},
     ["Write down: {text}", "Make a note: {text}", "Please save this note: {text}"],
     lambda r, a: {"id": r.randint(1, 500)}, "I saved the note."),
    ("sunrise", "Time of sunrise in a city in some month.",
     {"city": ("city", {"type": S}, True), "month": ("month", {"type": S}, True)},
     ["When does the sun rise in {city} in {month}?", "What time is sunrise in {city} in {month}?"],
     lambda r, a: {"time": KIND["time"](r)}, "In {month} the sun rises at {time} in {city}."),
    ("rent_bike", "Rent bicycles.",
     {"count": ("small", {"type": I, "minimum": 1}, True), "hours": ("small", {"type": I}, True), "place": ("place", {"type": S}, False)},
     ["Rent {count} bikes for {hours} hours.", "We need {count} bikes for {hours} hours at the {place}.", "Please get {count} bicycles for {hours} hours."],
     lambda r, a: {"cost": r.randint(5, 90)}, "Your {count} bikes for {hours} hours cost {cost} dollars."),
    ("roll_dice", "Roll dice.",
     {"count": ("small", {"type": I, "description": "Number of dice"}, True), "sides": ("small", {"type": I, "default": 6}, False)},
     ["Roll {count} dice.", "Roll {count} dice with {sides} sides.", "Throw {count} dice for me."],
     lambda r, a: {"total": r.randint(2, 60)}, "The dice show {total} in total."),
]
KIND["expr"] = lambda r: f"{r.randint(11, 99)} {r.choice('+-*')} {r.randint(2, 99)}"
KIND["bool"] = lambda r: r.random() < 0.5
BY_NAME = {t[0]: t for t in TOOLS}

# Other words for the same function name, so that the name is read from the declaration.
ALIAS = {
    "get_weather": ["weather", "current_weather", "weather_now"], "search_web": ["web_search", "search"],
    "send_message": ["send_text", "message_send"], "find_recipe": ["recipe_search", "get_recipe"],
    "set_timer": ["start_timer", "timer"], "get_time": ["current_time", "clock"],
    "calculate": ["calculator", "compute"], "find_flights": ["flight_search", "search_flights"],
    "translate": ["translate_text"], "book_table": ["reserve_table"], "get_distance": ["distance"],
    "add_note": ["save_note", "note_add"], "stock_count": ["get_stock", "check_stock"],
}


def schema(tool, rng, name):
    params = tool[2]
    props, required = {}, []
    for p, (_, sch, req) in params.items():
        props[p] = dict(sch)
        if rng.random() < 0.3:
            props[p].pop("description", None)
        if req:
            required.append(p)
    fn = {"name": name, "description": tool[1], "parameters": {"type": "object", "properties": props, "required": required}}
    if rng.random() < 0.1:
        del fn["description"]
    return {"type": "function", "function": fn}


def held_out(name, args):
    key = name + json.dumps(args, sort_keys=True)
    return hashlib.blake2b(key.encode(), digest_size=4).digest()[0] % 25 == 0


class _Slots(dict):
    def __missing__(self, key):
        raise KeyError(key)


def request(tool, rng, test):
    """(text, arguments): a way to ask for the tool and the call it needs.

    LookupError: the tool has too few argument sets for one to be on the wanted side.
    """
    for _ in range(400):
        ask = rng.choice(tool[3])
        args = {}
        for p, (kind, _, _) in tool[2].items():
            if "{" + p + "}" in ask:
                args[p] = KIND[kind](rng)
        if len({str(v) for v in args.values()}) < len(args):
            continue
        if held_out(tool[0], args) == test:
            text = ask.format_map(_Slots(args))
            return text[0].upper() + text[1:], args
    raise LookupError(tool[0])


OPEN = ["", "", "", "", "Hi! ", "Hello. ", "Please help me. ", "Hey, ", "I have a question. ", "One more thing: "]
THINK = [
    "The user wants to {goal}. I should call {name}.", "I can use {name} for this.", "This needs the tool {name}.",
    "There is a function {name} that fits. The arguments are in the request.", "{name} gives the answer, so I call it.",
    "To {goal}, the right tool is {name}.",
]
THINK2 = ["Both parts need a tool. I call {name} first and then {other}.", "I need two calls: {name} and {other}.",
          "The user asks for two things, so I call {name} and {other}."]
THINK_DONE = ["The result is there. I can answer now.", "Now I know the answer.", "The tool returned what I need.",
              "I have the result, so I tell the user.", "That is all the user asked for."]
THINK_NONE = ["No tool is needed for this.", "I can answer this without a tool.", "None of the functions fits, so I just answer.",
              "This is small talk and needs no call."]
JOIN = [" And ", " Also: ", " Then: ", " After that: ", " Second question: "]


def goal_of(tool):
    d = tool[1].rstrip(".")
    return d[0].lower() + d[1:]


def say(tool, args, result):
    values = dict(args)
    for k, v in result.items():
        values[k] = " and ".join(map(str, v)) if isinstance(v, list) else v
    text = tool[5].format_map(_Slots(values))
    return text[0].upper() + text[1:]


def dialogue(rng, test=False, chat=None):
    """(messages, tools, thinking): a finished conversation with tools declared.

    `chat` makes (user text, answer) for turns that need no tool. A test dialogue holds exactly the
    request and one expected call round.
    """
    k = rng.randint(1, 4)
    chosen = rng.sample(TOOLS, k)
    named = []
    for t in chosen:
        name = t[0]
        if t[0] in ALIAS and rng.random() < 0.4:
            name = rng.choice(ALIAS[t[0]])
        named.append((t, name))
    tools = [schema(t, rng, n) for t, n in named]
    thinking = rng.random() < 0.7
    messages = []
    if rng.random() < 0.3:
        messages.append({"role": "system", "content": rng.choice(SYSTEM)})
    calls = 0
    rounds = 1 if test else rng.choice((1, 1, 1, 2))
    for _ in range(rounds):
        if chat and not test and rng.random() < 0.22:
            u, a = chat(rng)
            messages += [{"role": "user", "content": u}, {"role": "assistant", "reasoning_content": rng.choice(THINK_NONE), "content": a}]
            continue
        todo = [named[0]] if k == 1 or rng.random() < 0.75 else named[:2]
        rng.shuffle(named)
        asks = [(t, n, *request(t, rng, test)) for t, n in todo]
        text = rng.choice(OPEN) + rng.choice(JOIN).join(a[2] for a in asks)
        messages.append({"role": "user", "content": text})
        tool_calls = []
        for t, n, _, args in asks:
            order = {p: args[p] for p in t[2] if p in args}
            tool_calls.append({"id": f"functions.{n}:{calls}", "type": "function", "function": {"name": n, "arguments": order}})
            calls += 1
        if len(asks) == 2:
            why = rng.choice(THINK2).format(name=asks[0][1], other=asks[1][1])
        else:
            why = rng.choice(THINK).format(name=asks[0][1], goal=goal_of(asks[0][0]))
        messages.append({"role": "assistant", "reasoning_content": why, "content": "", "tool_calls": tool_calls})
        if test:
            break
        said = []
        for (t, n, _, args), c in zip(asks, tool_calls):
            result = t[4](rng, args)
            messages.append({"role": "tool", "tool_call_id": c["id"], "content": json.dumps(result)})
            said.append(say(t, args, result))
        messages.append({"role": "assistant", "reasoning_content": rng.choice(THINK_DONE), "content": " ".join(said)})
    return messages, tools, thinking


SYSTEM = ["You are a helpful assistant.", "You are Kimi Nano, a small and friendly assistant.", "Answer shortly.", "You help people with daily tasks.",
          "Use the tools when they help.", "You are a careful assistant. Think before you answer."]

if __name__ == "__main__":
    import random
    from chat import render
    rng = random.Random(3)
    for _ in range(5):
        m, t, th = dialogue(rng)
        print(render(m, t, th), "\n----")
