# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""kvcachectl top prints rates by model as lines and as JSON, most active first. On a terminal it
updates in place; q or Ctrl-C restores the terminal. --sort and keys choose the order. Screens of
40, 60 and 80 columns have the columns that fit. Colours appear on terminals only, and not with
NO_COLOR."""
import fcntl, json, os, pty, re, signal, struct, termios, threading
from kvtest import *

CTL = binary("kvcachectl")
N = 100000
s = Store(options="settle=0", cpu="64M").mount()
for m in ("idle", "busy", "lame duck"):
    s.write(f"{m}/c/l", blob(m, N))
for i in range(60):
    os.mkdir(f"{s.mnt}/many{i:02}")
    s.write(f"many{i:02}/c/l", b"x")
s.settle()
stop = threading.Event()


def demoted():
    """The chunk has left the pool. Until its last close arrives, it is reported as in use."""
    while True:
        try:
            return os.setxattr(f"{s.mnt}/lame duck/c", "user.kvcachefs.demote", b"cpu")
        except OSError as e:
            assert e.errno == errno.EBUSY, e


def use():
    i = 0
    while not stop.is_set():
        s.read("busy/c/l")
        i += 1
        if i % 4 == 0:
            demoted()
            s.read("lame duck/c/l")


def at_terminal(screens, end, *words, width=100, env=None):
    """The output until a number of screens is complete; then the exit status, and the state of the
    terminal."""
    pid, fd = pty.fork()
    if not pid:
        os.execve(CTL, [CTL, *words], {**os.environ, "TERM": "xterm", **(env or {})})
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    was, seen = termios.tcgetattr(fd), b""
    while seen.count(b"\033[J") < screens:
        seen += os.read(fd, 65536)
    during = termios.tcgetattr(fd)
    end(pid, fd)
    try:
        while more := os.read(fd, 65536):
            seen += more
            if b"1049l" in seen:
                break
    except OSError:  # the end of a terminal is an error
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    after = termios.tcgetattr(fd)
    os.close(fd)
    return code, seen.decode(), was, during, after


def models(line):
    return {x["model"]: x for x in json.loads(line)["models"]}


def as_json():
    """Returns the output over two intervals in which use() ran, or False: on a busy machine it may
    not run for a second."""
    p = run(CTL, "top", "--interval", "1", "--count", "2", "--json", s.mnt, ok=True)
    m = [models(line) for line in p.stdout.splitlines()]
    return all(x["busy"]["opens_s"] and x["lame%20duck"]["loaded_bytes_s"] for x in m) and p


def as_text():
    text = run(CTL, "top", "--interval=1s", "--count=1", f"{s.mnt}/busy", ok=True).stdout
    return "100.0%" in text and text


t = threading.Thread(target=use)
t.start()
try:
    p, text = wait_for(as_json), wait_for(as_text)
    screens = [at_terminal(n, end, "top", "--interval", "1s", s.mnt) for n, end in
               ((2, lambda pid, fd: os.write(fd, b"q")),
                (1, lambda pid, fd: os.write(fd, b"\x03")),
                (1, lambda pid, fd: os.kill(pid, signal.SIGTERM)))]
finally:
    stop.set()
    t.join()

for line in p.stdout.splitlines():
    j = json.loads(line)
    m = models(line)
    assert j["mount"] == s.mnt and j["seconds"] >= 1 and len(m) == 64, len(m)
    assert [x["model"] for x in j["models"]][:2] == ["busy", "lame%20duck"]
    assert m["busy"]["opens_s"] > 0 and m["busy"]["share"] == 1, m["busy"]
    assert m["lame%20duck"]["share"] == 0 and m["lame%20duck"]["loaded_bytes_s"] > 0, \
        m["lame%20duck"]
    assert m["idle"]["opens_s"] == 0 and m["idle"]["share"] is None, m["idle"]
    assert m["idle"]["pool_bytes"] >= N, m["idle"]
    assert m["idle"]["files"] >= 1 and m["idle"]["disk_bytes"] >= N, m["idle"]
    assert m["idle"]["remote_bytes"] == m["idle"]["quota"] == 0, m["idle"]
assert len(p.stdout.splitlines()) == 2

lines = text.rstrip().splitlines()
assert lines[0].split() == ["asked/s", "found", "opens/s", "in", "memory", "creates/s",
                            "loaded/s", "copied/s", "pool", "disk", "model"], text
assert lines[1].endswith("  (all)") and lines[2].endswith("  busy") and "100.0%" in lines[2], text
assert len(lines) == 66 and any("(others)" in l for l in lines), text
assert max(map(len, lines)) < 130 and "\033" not in text

for code, seen, was, during, after in screens:
    assert code == 0 and after == was and during != was, (code, was, during, after)
    assert seen.startswith("\033[?1049h") and seen.endswith("\033[?1049l"), seen[-80:]
    screen = seen.split("\033[H")[1].split("\033[J")[0]
    assert screen.count("\n") <= 29 and " by use; q quits" in screen and "busy" in screen, screen

# the columns that fit, in their order; names are cut, and no line is longer than the screen
def plain(screen):
    return re.sub(r"\033\[[0-9;?]*[A-Za-z]", "", screen).replace("\r", "").split("\n")


HEADS = {40: ["asked/s", "found", "pool", "model"],
         60: ["asked/s", "found", "opens/s", "in memory", "pool", "model"],
         80: ["asked/s", "found", "opens/s", "in memory", "loaded/s", "copied/s", "pool", "model"],
         100: ["asked/s", "found", "opens/s", "in memory", "creates/s", "loaded/s", "copied/s",
               "pool", "disk", "model"]}
s.write(f"{'n' * 70}-8b/c/l", blob("n", 4 * N))
s.settle()
for width, heads in HEADS.items():
    screen = plain(at_terminal(1, lambda pid, fd: os.write(fd, b"q"), "top", "--interval", "1s",
                               "--sort", "pool", s.mnt, width=width)[1])
    assert all(len(l) <= width for l in screen), (width, screen)
    assert re.split(r"\s{1,}", screen[2].replace("in memory", "in_memory").strip()) == \
        [h.replace(" ", "_") for h in heads], (width, screen)
    assert screen[3].endswith("  (all)"), (width, screen)
    # a long name is cut in its middle
    assert re.search(r"  n{5,}~n{3,}-8b$", screen[4]), (width, screen)
    assert screen[0] in (s.mnt, "~" + s.mnt[-width + 1:]), screen

# colours
red, bold = "\033[31m", "\033[1m"


def press(keys):
    """Returns a function for the argument `end` of at_terminal: it presses the keys, waits after
    each, and then quits."""
    def end(pid, fd):
        for key in keys:
            os.write(fd, key.encode())
            time.sleep(0.2)
        os.write(fd, b"q")
    return end


for env, colour in (({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True),
                    ({"TERM": "dumb"}, False)):
    seen = at_terminal(1, press(""), "top", "--interval", "1s", s.mnt, env=env)[1]
    assert (bold in seen) == colour, (env, seen[:300])

# keys: another order at once, without another sample
seen = at_terminal(1, press("pnp"), "top", "--interval", "1s", s.mnt)[1]
screens = [plain(x) for x in seen.split("\033[H")[1:]]
assert [re.search(r" by (\w+);", x[1])[1] for x in screens] == ["use", "pool", "name", "pool"]
names = [[l.split("  ")[-1].rstrip("~") for l in x[4:20]] for x in screens]
assert names[1] == names[3] and names[1][0].startswith("nnn"), names
assert names[2] == sorted(names[2]) and names[2] != names[1], names

# ? lists the keys above the table, which stays within the screen, and hides them again
for width, lines in ((40, 3), (60, 2), (120, 1)):
    seen = at_terminal(1, press("??"), "top", "--interval", "1s", s.mnt, width=width)[1]
    off, on, again = (plain(x) for x in seen.split("\033[H")[1:4])
    keys = " ".join(on[2:2 + lines]).split()
    assert keys[::2] == list("uafomclwpn") and keys[1::2] == \
        "use asked found opens memory creates loaded copied pool name".split(), (width, on)
    assert on[2 + lines] == off[2] and off == again and len(on) == len(off) <= 30, (width, on, off)
    assert all(len(l) <= width for l in on), (width, on)
    assert off[1].endswith("q quits, ? keys"), off

# --sort: shares from the lowest one, models without requests last
for name, key in (("name", lambda x: x["model"]), ("pool", lambda x: -x["pool_bytes"]),
                  ("found", lambda x: (x["found_share"] is None, x["found_share"] or 0)),
                  ("asked", lambda x: -x["asked_s"])):
    os.path.exists(f"{s.mnt}/idle/none")
    line = run(CTL, "top", "--interval", "1", "--count", "1", "--json", "--sort", name, s.mnt,
               ok=True).stdout
    order = json.loads(line)["models"]
    assert order == sorted(order, key=key), (name, order)

for words in (("--interval", "0"), ("--sort", "size"), ("--count", "x"), (s.mnt, s.mnt)):
    p = run(CTL, "top", *words)
    assert p.returncode == 2 and p.stdout.count("\n") == 1, p
# it ends with the mount
p = subprocess.Popen([CTL, "top", "--interval", "1", s.mnt], stdout=subprocess.PIPE,
                     stderr=subprocess.STDOUT, text=True)
p.stdout.readline()
s.umount()
out = p.communicate()[0]
assert p.returncode == 1 and "kvcachectl: " in out, out
