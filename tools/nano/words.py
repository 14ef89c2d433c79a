"""Word lists of the nano language, written by hand for this project (Apache-2.0).

Everything the generators say is put together from these lists and from the sentence patterns in
data_math.py, data_tools.py and data_talk.py; no text of anybody else's goes into the training data.
"""

FEMALE = """Anna Bella Clara Dora Elena Fiona Grace Hannah Ida Julia Kira Lena Maria Nora Olga Paula
Rosa Sara Tina Vera Wendy Zoe Alice Betty Carla Diana Emma Freya Gina Holly Irene Jane Karen Lucy
Mia Nina Olive Petra Ruth Sofia Tara Una Violet Yara Amina Chloe Daisy Esther Farah Greta Heidi
Ingrid Jasmine Keiko Laila Mei Nadia Priya Renata Selma Thea Ulrike Valerie Xenia Yuki Zara
Natalia Maya Leah Ivy Hazel Ruby Amber""".split()

MALE = """Adam Ben Carl David Erik Frank George Hugo Ivan Jack Karl Leo Mark Noah Oscar Paul Quinn
Ryan Sam Tom Uwe Victor Will Yusuf Zack Aaron Bruno Chris Daniel Evan Felix Gabriel Henry Isaac
James Kevin Liam Max Nathan Owen Peter Ravi Simon Theo Umar Vincent Walter Xavier Yann Ali Bjorn
Cyril Dmitri Elias Farid Gustav Hamid Igor Jonas Kenji Lars Milo Nils Omar Pavel Rafael Stefan
Tariq Luca Jamal Hiro Andre Tobias""".split()

# plural, singular
FRUIT = [("apples", "apple"), ("pears", "pear"), ("plums", "plum"), ("oranges", "orange"),
         ("lemons", "lemon"), ("peaches", "peach"), ("mangoes", "mango"), ("melons", "melon"),
         ("figs", "fig"), ("limes", "lime"), ("bananas", "banana"), ("cherries", "cherry"),
         ("kiwis", "kiwi"), ("tomatoes", "tomato"), ("carrots", "carrot"), ("potatoes", "potato"),
         ("onions", "onion"), ("pumpkins", "pumpkin"), ("peppers", "pepper"), ("beets", "beet")]
THINGS = [("marbles", "marble"), ("stickers", "sticker"), ("stamps", "stamp"), ("coins", "coin"),
          ("shells", "shell"), ("buttons", "button"), ("beads", "bead"), ("cards", "card"),
          ("toys", "toy"), ("books", "book"), ("pencils", "pencil"), ("pens", "pen"),
          ("crayons", "crayon"), ("balloons", "balloon"), ("badges", "badge"), ("stones", "stone"),
          ("magnets", "magnet"), ("postcards", "postcard"), ("photos", "photo"),
          ("ribbons", "ribbon"), ("blocks", "block"), ("puzzles", "puzzle"), ("kites", "kite"),
          ("dolls", "doll"), ("comics", "comic"), ("keys", "key"), ("candles", "candle")]
FOODS = [("cookies", "cookie"), ("muffins", "muffin"), ("pies", "pie"), ("cakes", "cake"),
         ("sandwiches", "sandwich"), ("pizzas", "pizza"), ("rolls", "roll"), ("bagels", "bagel"),
         ("pancakes", "pancake"), ("waffles", "waffle"), ("donuts", "donut"), ("tarts", "tart"),
         ("cupcakes", "cupcake"), ("dumplings", "dumpling"), ("burgers", "burger"),
         ("salads", "salad"), ("soups", "soup"), ("tacos", "taco"), ("scones", "scone")]
GOODS = [("shirts", "shirt"), ("hats", "hat"), ("lamps", "lamp"), ("chairs", "chair"),
         ("mugs", "mug"), ("plates", "plate"), ("bowls", "bowl"), ("notebooks", "notebook"),
         ("scarves", "scarf"), ("belts", "belt"), ("bags", "bag"), ("socks", "sock"),
         ("gloves", "glove"), ("towels", "towel"), ("pillows", "pillow"), ("vases", "vase"),
         ("clocks", "clock"), ("mirrors", "mirror"), ("tables", "table"), ("brushes", "brush"),
         ("cups", "cup"), ("blankets", "blanket"), ("umbrellas", "umbrella")]
BIG_GOODS = ["bicycle", "tent", "guitar", "camera", "phone", "skateboard", "drum", "telescope",
             "violin", "keyboard", "jacket", "scooter", "desk", "radio", "watch", "kayak"]
ANIMALS = [("cows", "cow"), ("sheep", "sheep"), ("goats", "goat"), ("pigs", "pig"),
           ("horses", "horse"), ("ducks", "duck"), ("chickens", "chicken"), ("rabbits", "rabbit"),
           ("geese", "goose"), ("donkeys", "donkey"), ("turkeys", "turkey"), ("llamas", "llama")]
FLOWERS = ["roses", "tulips", "lilies", "daisies", "orchids", "violets", "irises", "poppies"]
TREES = ["oak", "pine", "maple", "birch", "cherry", "apple", "willow", "cedar", "elm", "beech"]
COLORS = ["red", "blue", "green", "yellow", "white", "black", "purple", "orange", "pink", "brown",
          "gray", "silver"]
BOXES = [("boxes", "box"), ("bags", "bag"), ("baskets", "basket"), ("jars", "jar"),
         ("crates", "crate"), ("shelves", "shelf"), ("trays", "tray"), ("drawers", "drawer"),
         ("packs", "pack"), ("cartons", "carton"), ("bins", "bin"), ("buckets", "bucket")]
PLACES = ["school", "market", "park", "library", "museum", "station", "harbor", "bakery", "farm",
          "garden", "village", "theater", "stadium", "beach", "zoo", "cafe", "hotel", "gym",
          "bank", "factory", "airport", "bookshop", "pool", "castle", "forest", "river"]
SHOPS = ["a bakery", "a bookshop", "a toy shop", "the market", "a garden shop", "a small store",
         "the fair", "the school shop", "a corner shop", "the mall", "a street stand", "a farm stand"]
CITIES = """London Paris Berlin Madrid Rome Vienna Prague Oslo Dublin Lisbon Athens Warsaw Cairo
Tokyo Osaka Seoul Beijing Shanghai Delhi Mumbai Sydney Perth Toronto Boston Chicago Denver Seattle
Austin Miami Dallas Lima Bogota Quito Santiago Nairobi Lagos Accra Tunis Dakar Hanoi Manila Jakarta
Zurich Geneva Basel Munich Hamburg Cologne Milan Naples Turin Seville Porto Lyon Nice Lille Ghent
Bruges Riga Tallinn Vilnius Krakow Budapest Sofia Belgrade Zagreb Bergen Malmo Helsinki Turku
Tampere Reykjavik Auckland Brisbane Kyoto Nagoya Busan Portland""".split()
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September",
          "October", "November", "December"]
JOBS = ["teacher", "nurse", "baker", "farmer", "painter", "driver", "gardener", "writer", "doctor",
        "carpenter", "plumber", "tailor", "sailor", "pilot", "cook", "clerk", "singer", "builder"]
HOBBIES = ["reading", "painting", "cooking", "hiking", "swimming", "chess", "gardening", "singing",
           "dancing", "fishing", "cycling", "knitting", "running", "baking", "sailing", "drawing",
           "photography", "pottery", "astronomy", "climbing", "birdwatching", "writing", "skating"]
SUBJECTS = ["math", "history", "music", "art", "biology", "physics", "geography", "chemistry",
            "spelling", "drama", "grammar", "science"]
SPORTS = ["soccer", "tennis", "basketball", "hockey", "volleyball", "rugby", "baseball", "golf"]
MATERIALS = ["wood", "glass", "stone", "paper", "clay", "cotton", "wool", "silk", "iron", "copper"]
WEATHER = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear", "humid"]
MOODS = ["happy", "tired", "calm", "curious", "proud", "nervous", "cheerful", "sleepy", "excited",
         "worried", "grateful", "bored", "lonely", "hopeful", "busy"]
ADJECTIVES = ["old", "small", "bright", "quiet", "strange", "warm", "cold", "heavy", "gentle",
              "narrow", "tall", "broken", "golden", "dusty", "simple", "wild", "empty", "soft",
              "rusty", "round", "deep", "pale", "busy", "famous", "hidden", "wooden", "sleepy"]
NATURE = ["river", "mountain", "valley", "meadow", "lake", "forest", "hill", "island", "cave",
          "desert", "coast", "cliff", "field", "stream", "waterfall", "glacier", "canyon", "bay"]
PETS = [("cat", "cats"), ("dog", "dogs"), ("parrot", "parrots"), ("hamster", "hamsters"),
        ("turtle", "turtles"), ("rabbit", "rabbits"), ("goldfish", "goldfish"), ("pony", "ponies")]
DISHES = ["pasta", "rice", "soup", "stew", "curry", "salad", "omelet", "lasagna", "noodles",
          "pancakes", "chili", "risotto", "porridge", "pizza", "sushi", "dumplings", "falafel",
          "roast potatoes", "vegetable pie", "lentil soup", "fish cakes", "bean stew"]
INGREDIENTS = ["onion", "garlic", "butter", "olive oil", "salt", "pepper", "basil", "ginger",
               "lemon juice", "cream", "cheese", "mushrooms", "tomatoes", "beans", "eggs", "flour"]
INSTRUMENTS = ["piano", "violin", "guitar", "flute", "trumpet", "cello", "harp", "drum", "clarinet"]
LANGUAGES = ["English", "French", "German", "Spanish", "Italian", "Japanese", "Chinese", "Korean",
             "Arabic", "Hindi", "Polish", "Greek", "Dutch", "Turkish", "Swedish", "Finnish"]
CURRENCIES = ["USD", "EUR", "GBP", "JPY", "CHF", "CNY", "SEK", "NOK", "INR", "CAD", "AUD", "PLN"]

NUMBER_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine",
                "ten", "eleven", "twelve"]

# Common words that only the tokenizer sees: they keep ordinary English text short even where the
# generators never use the word.
COMMON = """about above across after again against age ago agree air all allow almost along already
also although always among amount and animal another answer any anyone appear area arm around arrive
art ask away baby back bad ball base beautiful because become bed before begin behind believe below
best better between beyond big bird bit black blood board boat body bone born both bottom break breath
bridge bright bring brother brought build building burn business but call came can capital car care
carry case catch caught cause cell center central century certain chance change character charge check
child children choose church circle city claim class clean clear climb close clothe cloud coast cold
collect college color come common community company compare complete computer condition consider
contain continue control cook cool copy corn corner correct cost could count country course cover
create cross crowd cry culture current customer cut dance danger dark data daughter dead deal death
decide decision deep degree depend describe desert design develop device difference different
difficult dinner direct discover discuss disease distance divide doctor does done door double down
draw dream dress drink drive drop dry during each early earth ease east easy economy edge education
effect effort egg eight either electric else end enemy energy engine enough enter entire environment
equal error especially even evening event ever every evidence exact example except excite exercise
expect experience explain express eye face fact fair fall family famous far farm fast father favor
fear feed feel feet fell felt few field fight figure file fill film final find fine finger finish
fire first fish fit five flat floor flow flower fly follow food foot for force foreign forest forget
form forward found four free fresh friend from front fruit full fun function future game garden gas
gather gave general gentle get girl give glass goal gold gone good got government grand grass great
green grew ground group grow growth guess guide gun had hair half hand happen happy hard has hat have
head health hear heard heart heat heavy held help here high hill him himself history hit hold hole
home hope horse hospital hot hour house how however huge human hundred hunt hurry husband ice idea
image imagine impact important improve include increase indeed indicate industry information inside
instead interest into invent iron island issue item itself job join joy judge jump just keep kept key
kill kind king kitchen knew know knowledge known lady land language large last late later laugh law
lay lead leader learn least leave left leg length less let letter level library lie life lift light
like likely line liquid list listen little live local long look lost lot loud love low machine made
magnet mail main major make man manage many map mark market mass master match material matter may mean
measure media medical meet meeting member memory men mention message method middle might mile military
milk million mind mine minute miss mix model modern moment money month moon more morning most mother
motion mount mountain mouth move movement much music must name nation natural nature near necessary
need network never new news next night nine noise none north nose note nothing notice noun now number
object observe occur ocean off offer office often oil old once one only open operation opportunity
opposite option order organ original other our out over own oxygen page paint pair paper paragraph
parent part particular party pass past path patient pattern pay peace people perhaps period person
phrase pick picture piece place plan plane planet plant play please point police policy poor popular
population position possible post pound power practice prepare present president press pretty prevent
price print private probable problem process produce product program project property protect prove
provide public pull purpose push put quality quart question quick quiet quite race radio rain raise ran
range rate rather reach read ready real reason receive recent record red region relation remember
remove repeat reply report represent require research rest result return rich ride right ring rise
risk river road rock role roll room root rope rose round row rule run safe said sail same sand sat
save saw say scale scene school science score sea search season seat second secret section security
see seed seem segment select self sell send sense sent sentence separate serious serve service set
settle seven several shall shape share sharp she sheet shell shine ship shoe shop shore short should
shoulder shout show side sight sign silent similar simple since sing single sister sit site situation
six size skill skin sky sleep slip slow small smell smile snow social society soft soil soldier
solution solve some son song soon sound source south space speak special speech speed spell spend
spoke spot spread spring square staff stage stand standard star start state station stay steam steel
step stick still stone stood stop store story straight strange stream street stretch strong structure
student study style subject success such sudden suffix sugar suggest suit summer sun supply support
sure surface surprise swim symbol system table tail take talk tall teach teacher team technology
television tell temperature ten term test than thank that the their them themselves then theory there
these they thick thin thing think third this those though thought thousand through throughout throw
thus tie time tiny tire together told tone too took tool top total touch toward town track trade
traffic train training travel treat treatment tree triangle trip trouble truck true trust try tube
turn twenty two type under understand unit until upon usual valley value various verb very view
village visit voice vote vowel wait walk wall want war warm wash watch water wave way weapon wear
weather week weight well went were west what wheel when where whether which while white who whole
whose why wide wife wild will win wind window wing winter wire wish with within without woman women
wonder wood word work worker world worry would write wrong wrote yard year yellow yes yet you young
your yourself inference server token model cache request response stream benchmark engine string
return function class const static public private void int float double bool true false null import
from def print self list dict value error None self assert lambda while for break continue struct
template typename namespace include vector size index begin end std auto throw catch""".split()
