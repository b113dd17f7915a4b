# SPDX-License-Identifier: Apache-2.0
# ways: none
# level: check
"""Each part of a node and of a tier's state is written by one file. In the structs below, a comment
"Written by FOLDER/FILE.c." before a member names the file, or two, which may write the member. The
compiler finds the writers: it compiles each file of the engine with these members const, except the
file's own. So an assignment, an increment, memset(), or a pointer to the member that is not const
is an error, in macros too. Inline functions in the header of the owner count as the owner."""
import glob, os, re, subprocess, threading
from concurrent.futures import ThreadPoolExecutor
from kvtest import *

STRUCTS = ("kvc_node", "kvc_node_tier", "kvc_tier_state")
# These functions initialize a struct that no other thread knows yet, so they may write all members.
CONSTRUCTORS = {"kvc_node_new_locked", "node_load_locked"}
top = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
os.chdir(top)
layers = re.search(r"^LAYERS := (.*)$", open("Makefile").read(), re.M).group(1).split()
# A write to a bit-field is only a warning.
WRITE = re.compile(r"(\S+?):(\d+):\d+: (?:error|warning(?=.*read-only)): (.*)")
CC = ["gcc", "-std=gnu11", "-DNDEBUG", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64",
      '-DKVC_VERSION="0"']


def find(text, struct):
    """Returns where the body of the struct begins and ends."""
    m = re.search(rf"^struct {struct} \{{$(.*?)^\}};", text, re.M | re.S)
    return m and m.span(1)


def members(body):
    """Yields for each member: where its declaration begins and ends, its name, its comment."""
    comment, at, depth, begin = "", 0, 0, None
    for m in re.finditer(r"/\*.*?\*/|^#.*?$|[{};]|[^\s{};/#]+|[/#]", body, re.S | re.M):
        word = m.group()
        if word.startswith("/*"):
            comment = word if begin is None and not body[at:m.start()].count(";") else comment
            continue
        if word.startswith("#"):
            continue
        begin = m.start() if begin is None else begin
        depth += (word == "{") - (word == "}")
        if word == ";" and not depth:
            declaration = re.sub(r"\{.*\}", "", body[begin:m.start()], flags=re.S)
            declaration = re.sub(r"\[.*?\]|:\s*\d+", "", declaration)
            yield begin, m.end(), re.findall(r"(\w+)\s*(?:,|$)", declaration), comment
            comment, at, begin = "", m.end(), None


owners = {}  # (struct, member): files without .c; None: any file
for struct in STRUCTS:
    header = [p for p in glob.glob("engine/*/*.h") if find(open(p).read(), struct)]
    assert len(header) == 1, f"struct {struct} is defined in {header}"
    text = open(header[0]).read()
    a, b = find(text, struct)
    for _, _, names, comment in members(text[a:b]):
        by = re.search(r"Written by ([\w/]+\.c(?: and [\w/]+\.c)?)", " ".join(comment.split()))
        files = re.findall(r"([\w/]+)\.c\b", by.group(1)) if by else None
        for f in files or ():
            assert os.path.exists(f"engine/{f}.c"), f"{header[0]} names {f}.c, which does not exist"
        assert not files or len(files) <= 2, f"{header[0]}: {names} has more than two writers"
        for name in names:
            owners[struct, name] = files


def const(text, owned):
    """Makes the members of a preprocessed text const, except those for which owned() is true."""
    for struct in STRUCTS:
        span = find(text, struct)
        if not span:
            continue
        body = text[span[0]:span[1]]
        for begin, end, names, _ in reversed(list(members(body))):
            if owned(struct, names[0]):
                continue
            declaration = body[begin:end]
            if "{" not in declaration and "*" in declaration:
                declaration = declaration.replace("*", "*const ")
            else:
                declaration = "const " + declaration
            body = body[:begin] + declaration + body[end:]
        text = text[:span[0]] + body + text[span[1]:]
    return text


def compile(text):
    """Yields the writes to const members: the file, the line, the function and the message."""
    done = subprocess.run(CC + ["-fsyntax-only", "-fpreprocessed", "-x", "cpp-output",
                                "-Werror=discarded-qualifiers", "-fmax-errors=0", "-"],
                          input=text, capture_output=True, text=True, env={**os.environ,
                                                                           "LC_ALL": "C"})
    function = "?"
    for line in done.stderr.splitlines():
        if m := re.search(r"In function '(\w+)'", line):
            function = m.group(1)
        elif (m := WRITE.match(line)) and function not in CONSTRUCTORS:
            yield m.group(1), int(m.group(2)), function, m.group(3)


def preprocess(path):
    folder = path.split("/")[1]
    seen = layers[: layers.index(folder) + 1] + ["objects"] * (folder in ("telemetry", "limits"))
    return run(*CC, "-E", *(f"-Iengine/{f}" for f in seen), path, ok=True).stdout


def stem(path):
    return re.sub(r"^engine/|\.[ch]$", "", path)


def writes(text, struct, member):
    """The writes to one member in a preprocessed file."""
    return list(compile(const(text, lambda s, m: (s, m) != (struct, member))))


in_headers = {}  # header: {(line, function): members that it writes}
lock = threading.Lock()


def line_of(at, number):
    with open(at) as f:
        return f.read().splitlines()[number - 1]


def named(found):
    """The members that the lines of these writes name, or all members if a line names none."""
    by_line = [[m for m in owners if re.search(rf"\b{m[1]}\b", line_of(at, line))]
               for at, line, *_ in found if at.endswith(".h")]
    return dict.fromkeys(sum(by_line, [])) if all(by_line) else owners


def header_writes(text, header):
    """The writes in inline functions of a header. They are the same in each file that includes it,
    so all headers of a file are examined together, and each only once."""
    with lock:
        if header not in in_headers:
            found = {}
            for member in named(list(compile(const(text, lambda s, m: False)))):
                for at, line, function, _ in writes(text, *member):
                    found.setdefault(at, {}).setdefault((line, function), set()).add(member)
            for at, by in found.items():
                if at.endswith(".h"):
                    in_headers.setdefault(at, by)
        assert header in in_headers, f"{header} does not compile: {list(compile(text))}"
        return in_headers[header]


def check(path):
    """Returns the writes to members of other files, as (member, files, where), and the functions of
    this file that write its own members, as {member: functions}."""
    text, wrong = preprocess(path), []
    if not any(find(text, s) for s in STRUCTS):
        return [], {}

    def may(struct, member):
        files = owners[struct, member]
        return files is None or stem(path) in files

    def note(member, at, line, function):
        files = owners[member]
        if not may(*member) and stem(at) not in files:
            wrong.append((member, files, f"{at}:{line}: {function}()"))

    found = list(compile(const(text, may)))
    for at in {at for at, *_ in found if at.endswith(".h")}:
        for (line, function), written_ in header_writes(text, at).items():
            for member in written_:
                note(member, at, line, function)
    if any(not at.endswith(".h") for at, *_ in found):
        assert not list(compile(text)), f"{path} does not compile: {list(compile(text))}"
        for member in owners:
            for at, line, function, _ in [] if may(*member) else writes(text, *member):
                note(member, at, line, function)
    return wrong, {m: [w[2] for w in writes(text, *m)] for m, files in owners.items()
                   if files and stem(path) in files}


# The compiler finds each kind of write, and no read.
SAMPLE = """
typedef unsigned long size_t;
void *memset(void *, int, size_t);
struct kvc_node {
	struct { int a, bits : 4; int v[3]; struct { int x; } in; } part;
	struct kvc_node *next;
	int rest;
};
void use(int *);
int get(const int *);
void w1(struct kvc_node *n) { n->part.a = 1; }
void w2(struct kvc_node *n) { n->part.a++; }
void w3(struct kvc_node *n) { --n->part.in.x; }
void w4(struct kvc_node *n) { n->part.v[2] |= 4; }
void w5(struct kvc_node *n) { use(&n->part.a); }
void w6(struct kvc_node *n) { use(n->part.v); }
void w7(struct kvc_node *n) { memset(&n->part, 0, sizeof n->part); }
void w8(struct kvc_node *n) { int *p = &n->part.in.x; *p = 1; }
void w9(struct kvc_node *n, struct kvc_node *o) { *n = *o; }
void w10(struct kvc_node *n) { n->part.bits = 1; }
void r1(struct kvc_node *n) { n->rest = n->part.a + get(&n->part.in.x) + n->part.v[1]; }
void r2(struct kvc_node *n) { const int *p = n->part.v; n->next = n->next->next; n->rest += *p; }
"""
found = {f for _, _, f, _ in compile(const(SAMPLE, lambda s, m: m != "part"))}
assert found == {f"w{i}" for i in range(1, 11)}, found
found = {f for _, _, f, _ in compile(const(SAMPLE, lambda s, m: m != "next"))}
assert found == {"w9", "r2"}, found
assert not list(compile(SAMPLE)), list(compile(SAMPLE))

sources = sorted(glob.glob("engine/*/*.c"))
wrong, written = set(), {}
with ThreadPoolExecutor(os.cpu_count()) as pool:
    for path, (errors, mine) in zip(sources, pool.map(check, sources)):
        for (struct, member), files, where in errors:
            wrong.add((struct, member, " and ".join(f + ".c" for f in files), where))
        for member, functions in mine.items():
            written.setdefault(member, {}).setdefault(stem(path), functions)
            assert functions, (f"{path} does not write {member[1]} of struct {member[0]}: correct "
                               "the comment")
assert not wrong, "\n".join(
    f"{where} writes `{member}` of struct {struct}, which only {files} may write. Call a function "
    f"of that file, or add one. These write it: "
    + ", ".join(sorted({f for fs in written[struct, member].values() for f in fs}))
    for struct, member, files, where in sorted(wrong))
for struct in STRUCTS:
    files = [f for (s, _), f in owners.items() if s == struct]
    print(f"struct {struct}: {len(files)} members, of which {len(files) - files.count(None)} "
          "have owners")
