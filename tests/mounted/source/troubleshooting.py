# SPDX-License-Identifier: Apache-2.0
# ways: none
"""kvcachefs-troubleshooting(7) quotes messages as the sources have them."""
import glob, os, re
from kvtest import *

top = os.path.join(os.path.dirname(__file__), "../../..")
# all texts of the sources, with adjacent parts joined and macros such as PRIu64 as conversions
texts = set()
for path in glob.glob(f"{top}/engine/*/*.c") + glob.glob(f"{top}/mkfs/**/*.c", recursive=True) + \
        glob.glob(f"{top}/fs/*.c") + glob.glob(f"{top}/tiers/*.c"):
    source = re.sub(r'%"\s*PRI\w+\s*"', "%u", open(path).read())
    source = re.sub(r'%"\s*PRI\w+', '%u"', source)
    source = re.sub(r'(?<=[^\\])"\s*\n\s*"', "", source)
    texts |= {t.replace('\\"', '"').replace("\\n", "")
              for t in re.findall(r'"((?:[^"\\\n]|\\.)*)"', source)}
CONVERSION = r"%[-+0 #]*[\d*]*(?:\.[\d*]+)?(?:ll|l|z|h)?[a-z]"


def pattern(text):
    """A regular expression of a text, or None if the text has too few words of its own."""
    parts = re.split(CONVERSION, text.replace("%%", "\0"))
    if len("".join(parts)) < 15:
        return None
    return re.compile(".*?".join(re.escape(p.replace("\0", "%")) for p in parts))


patterns = [p for p in map(pattern, texts) if p]
assert len(patterns) > 500, len(patterns)


def is_message(quoted):
    """Whether a text of the sources, of at least half of the length, gives this message."""
    return any(p.fullmatch(quoted) and 2 * len(p.pattern.replace("\\", "").replace(".*?", ""))
               > len(quoted) for p in patterns)


page = open(f"{top}/man/kvcachefs-troubleshooting.7").read().replace("\\\n", "")
quoted = [re.sub(r"\\&", "", q).replace("\\-", "-")
          for q in re.findall(r"^\.TP\n\.B (.*)$", page, re.M)]
assert len(quoted) > 50 and len(set(quoted)) == len(quoted), quoted
wrong = [q for q in quoted if not is_message(q)]
assert not wrong, f"kvcachefs-troubleshooting.7: no source has these messages: {wrong}"
# the comparison itself
assert is_message("no kvcachefs is mounted; mount one with kvcachefs STORE MOUNTPOINT")
assert not is_message("no kvcachefs is mounted; mount one with mount STORE MOUNTPOINT")
assert not is_message("STORE: REASON")
