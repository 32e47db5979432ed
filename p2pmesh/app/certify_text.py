"""The text that wire dtypes are measured over: prose, speech, numbers, code, lists and another language.

Part of what a certificate says: change a word and figures of before and after can no longer be compared.
"""

CERTIFY_TEXT = """\
The ferry left the harbour a little after six, when the fog had thinned enough for the pilot to see the second buoy. On
the upper deck an old man unfolded a map of the islands and began to explain to his granddaughter how the tides work.
"Twice a day," he said, "the water goes away and comes back, because the moon pulls at it from one side and the earth
turns underneath." She asked whether the moon ever gets tired. He thought about that for a while. "No," he said at last,
"but it does move away from us, about four centimetres every year, so in a very long time the tides will be smaller."

The history of the lighthouse is short. It was built in 1871, burned down in 1902, and was rebuilt three years later
with a lamp of 250,000 candles that could be seen at a distance of 21 nautical miles. In 1968 the last keeper retired,
and since then a small computer in a grey cabinet switches the light on at dusk. The following table was found in his
logbook:
  month      visitors   storms   hours of light
  January          12        9            14.5
  April           148        3            10.2
  July            977        1             7.1
  October         205        6            12.8

To bake a simple bread you need 500 g of flour, 350 ml of water, 10 g of salt and 3 g of dry yeast. Mix everything, wait
for twelve hours, fold the dough four times, let it rest for another hour, and bake it in a covered pot at 240 degrees
for thirty minutes. Remove the lid and bake for fifteen minutes more. Let the bread cool down before you cut it.

Question: What is the capital of France, and which river flows through it?
Answer: The capital of France is Paris. The river Seine flows through the city from east to west.

def is_prime(number: int) -> bool:
    # Trial division is enough for small numbers.
    if number < 2:
        return False
    divisor = 2
    while divisor * divisor <= number:
        if number % divisor == 0:
            return False
        divisor += 1
    return True

print([n for n in range(30) if is_prime(n)])  # [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]

{"name": "sensor-17", "temperature": 21.4, "unit": "celsius", "alarms": [], "location": {"floor": 3, "room": "B12"}}

Am naechsten Morgen war der Nebel verschwunden. Die Kinder liefen zum Strand, sammelten Muscheln und bauten eine Burg
aus Sand, die bis zum Mittag hielt. Dann kam die Flut und nahm sie wieder mit.

In physics, the conservation of energy states that the total energy of an isolated system remains constant over time. It
can neither be created nor destroyed; rather, it can only be transformed from one form to another. For instance, the
chemical energy of petrol becomes kinetic energy of a car and heat in its brakes. If the system is not isolated, the
change of its energy equals the work done on it plus the heat that flows into it.

Dear Mrs. Okafor, thank you for your letter of 3 March. We are sorry to hear that the parcel arrived damaged. Please
keep the box and send us two photographs of it; we will replace the lamp within ten working days, at no cost to you. If
you have further questions, you can reach us on weekdays between 9 a.m. and 5 p.m. With kind regards, the customer
service. """
