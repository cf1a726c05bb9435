/*
 * calibration_text.c: what a model reads when it is calibrated and no text is given: about 2,400
 * tokens of our own, of many kinds, that come back to what stood before.
 */
#include <stddef.h>

#include "runtime/session/calibration.h"

static const char letter[] =
    "The lighthouse at Corran Point\n\n"
    "The last keeper of the lighthouse at Corran Point was a woman named Ida Marsh, and for "
    "thirty-one winters she wrote down everything that the sea brought to her door. Some of it "
    "was useful: timber, rope, a barrel of lamp oil that lasted until March. Most of it was not. "
    "She kept a tin box of letters that had been in bottles, sorted by the language she guessed "
    "they were written in, and another box for the ones she could not guess at all. When the "
    "light was made automatic the harbour board offered her a house in town with a garden. She "
    "thanked them, asked whether the garden faced west, and, hearing that it did not, stayed "
    "where she was.\n\n"
    "It was there that her nephew Tomas found her in the spring of 1974, mending a net she no "
    "longer used. He had come, he said, to talk about the logbooks. There were forty of them. A "
    "museum in the city wanted to copy the pages about the weather, because nobody else on that "
    "coast had measured the wind three times a day for so long without missing a single "
    "morning. Ida listened, tied off a knot, and asked him to read the first page aloud.\n";

static const char dialogue[] =
    "\"'Wind north-east, fresh,'\" Tomas read. \"'Barometer 29.84. One ship, the Amalia, bound "
    "south with slate. Hens laid four.'\"\n\n"
    "\"Four,\" said Ida. \"That was a good day for the hens.\"\n\n"
    "\"Aunt Ida, did you ever miss a morning? Even one?\"\n\n"
    "\"Once.\" She put the net down. \"The year the Amalia went onto the rocks. I was in the boat "
    "from midnight until noon. I wrote it down afterwards, but I put a line through it, because "
    "a reading you remember is not a reading you took.\"\n\n"
    "\"The museum will want to know that.\"\n\n"
    "\"Then tell them. And tell them that they can have the weather, but the hens are mine.\" She "
    "smiled for the first time. \"What do they pay for forty books of wind?\"\n\n"
    "\"Nothing, I'm afraid. They would print your name, though. 'Collected by I. Marsh, Corran "
    "Point.'\"\n\n"
    "\"Nothing is what I paid for it,\" said Ida. \"It's a fair price.\"\n";

static const char table[] =
    "Readings copied from logbook 17 (the year of the Amalia):\n\n"
    "| date       | hour | wind dir. | force | barometer | remarks              |\n"
    "|------------|------|-----------|-------|-----------|----------------------|\n"
    "| 1951-11-02 | 06   | SW        | 4     | 29.71     | rain before dawn     |\n"
    "| 1951-11-02 | 12   | SW        | 5     | 29.62     | two sails, northward |\n"
    "| 1951-11-02 | 18   | WSW       | 7     | 29.38     | lamp lit at 16:40    |\n"
    "| 1951-11-03 | 06   | W         | 9     | 29.07     | hens kept inside     |\n"
    "| 1951-11-03 | 12   | W         | 10    | 28.95     | struck through       |\n"
    "| 1951-11-03 | 18   | NW        | 8     | 29.20     | Amalia on the rocks  |\n\n"
    "The mean force of the six readings is (4 + 5 + 7 + 9 + 10 + 8) / 6 = 43 / 6, or about 7.17; "
    "without the one that was struck through it is 33 / 5 = 6.6. The barometer fell by 29.71 - "
    "28.95 = 0.76 inches in thirty hours.\n";

static const char code[] =
    "The museum's program for the logbooks was short:\n\n"
    "```c\n"
    "#include <stdlib.h>\n\n"
    "struct reading {\n"
    "    int day, hour, force;\n"
    "    double barometer;\n"
    "};\n\n"
    "/* Mean force of all readings that were not struck through. */\n"
    "static double mean_force(const struct reading *readings, size_t count)\n"
    "{\n"
    "    double sum = 0.0;\n"
    "    size_t used = 0;\n"
    "    for (size_t i = 0; i < count; i++) {\n"
    "        if (readings[i].force < 0) { /* struck through */\n"
    "            continue;\n"
    "        }\n"
    "        sum += readings[i].force;\n"
    "        used++;\n"
    "    }\n"
    "    return used > 0 ? sum / (double)used : 0.0;\n"
    "}\n\n"
    "int main(void)\n"
    "{\n"
    "    struct reading readings[] = {{2, 6, 4, 29.71}, {2, 12, 5, 29.62}, {3, 12, -1, 28.95}};\n"
    "    double mean = mean_force(readings, 3);\n"
    "    return mean == 4.5 ? EXIT_SUCCESS : EXIT_FAILURE;\n"
    "}\n"
    "```\n\n"
    "It succeeds, since the reading of noon on the third day does not count: (4 + 5) / 2 = 4.5.\n";

static const char list[] =
    "What to bring when you visit the point:\n"
    "  1. Boots. The path is under water from two hours before high tide until one hour after.\n"
    "  2. A lamp with fresh batteries, even at noon: the stairs (112 of them) have no windows.\n"
    "  3. Bread, cheese, and something warm to drink. There is no shop within 9 km.\n"
    "  4. A pencil. Ink runs.\n"
    "Do not bring:\n"
    "  - dogs, because of the hens;\n"
    "  - radios, because of the keeper;\n"
    "  - expectations about the weather, because of the weather.\n\n"
    "Soup for six, as it is made there. Melt 50 g of butter, fry two onions and three leeks in it "
    "until they are soft, add 800 g of potatoes in slices, a litre and a half of stock, salt, "
    "pepper, a bay leaf. Cook for 25 minutes. Put in 400 g of smoked haddock, cook five minutes "
    "more, take out the bay leaf, stir in 200 ml of cream. It is better on the second day.\n";

static const char explanation[] =
    "Why does a falling barometer mean wind? Air moves from where the pressure is high to where "
    "it is low. It does not go straight there, because the Earth turns beneath it: in the "
    "northern hemisphere moving air is pushed to its right, so that it circles a low "
    "anticlockwise. The steeper the slope of the pressure, the faster the air must go for the "
    "two forces to balance. If p changes by dp over a distance dx, the speed is roughly v = "
    "(dp/dx) / (rho * f), where rho is the density of the air, about 1.2 kg/m^3, and f = 2 * "
    "omega * sin(latitude), about 1.2e-4 per second at 55 degrees. With dp = 400 Pa over dx = "
    "100 km this gives v = 0.004 / (1.2 * 1.2e-4) = 28 m/s: a storm. A keeper sees only one "
    "point, but as the low passes over it, the slope in space becomes a fall in time, and a fall "
    "of more than a tenth of an inch in three hours is a reason to bring in the hens.\n\n"
    "Q: Can the height of the tide be predicted in the same way?\n"
    "A: Better. The tide follows the moon and the sun, whose paths are known for centuries, so a "
    "table for the year 2090 could be printed today. What cannot be known is what the wind adds "
    "to it.\n"
    "Q: And how much is that?\n"
    "A: At Corran Point, up to 1.3 metres. Ida Marsh wrote it on the wall beside the door, with "
    "the date.\n";

static const char data[] =
    "{\"station\": \"Corran Point\", \"position\": [55.4172, -5.8031], \"height_m\": 38, "
    "\"keepers\": [{\"name\": \"J. Aldous\", \"from\": 1889, \"to\": 1912}, {\"name\": \"P. "
    "Marsh\", \"from\": 1912, \"to\": 1943}, {\"name\": \"I. Marsh\", \"from\": 1943, \"to\": "
    "1974}], \"light\": {\"period_s\": 15, \"range_nm\": 21, \"automatic\": true}}\n\n"
    "2024-02-11 03:12:07 INFO  lamp: on, 15.0 s, 148 W\n"
    "2024-02-11 03:42:55 WARN  link: no answer from buoy 3 (attempt 1 of 5)\n"
    "2024-02-11 03:43:25 WARN  link: no answer from buoy 3 (attempt 2 of 5)\n"
    "2024-02-11 03:43:55 INFO  link: buoy 3 answered after 61.8 s\n"
    "2024-02-11 08:02:31 INFO  lamp: off, 17414 s, 716 Wh\n";

static const char ending[] =
    "Dear Ms Marsh,\n\n"
    "Thank you for the forty logbooks, which arrived yesterday by the 10:15 train, dry and "
    "complete. We have begun with number 17. As you asked, we copy the weather and leave out the "
    "hens, although I must confess that the staff have grown fond of them, and that somebody has "
    "pinned a list of their eggs to the door of the reading room. The line through the noon of "
    "the third of November will be printed as a line. I have been a curator for twenty years and "
    "have never seen anything that made me trust a book more.\n\n"
    "Your nephew tells me that your window faces west. Ours does not. If you should ever wish to "
    "see what became of your wind, there is a chair for you here, and I shall have it turned "
    "round.\n\n"
    "Yours sincerely,\n"
    "R. Okafor\n\n"
    "She never came. But every year, on the second of November, a postcard reached the museum "
    "with a single line on it, in the same hand as the logbooks: the direction of the wind, its "
    "force, the barometer, and the number of eggs.\n";

const char *const pkvi_calibration_text[] = {
    letter, dialogue, table, code, list, explanation, data, ending, NULL,
};
