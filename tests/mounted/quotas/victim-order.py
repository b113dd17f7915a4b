# SPDX-License-Identifier: Apache-2.0
# ways: fast
# level: check
"""The victims of a model above its quota: its policy chooses them, and no chunk is dropped before
its children, which an attribute or a lease has reported. Chunks of other models stay."""
import concurrent.futures, os, time
from kvtest import *

N = MiB
A, B = [f"a{c}" for c in range(5)], [f"b{c}" for c in range(5)]
A_FIRST, B_FIRST = A[::-1] + B[::-1], B[::-1] + A[::-1]
# prompt a is stored first, and read once at the end; prompt b is read three times before that
ORDER = {"lru": B_FIRST, "fifo": A_FIRST, "lfu": A_FIRST, "mru": A_FIRST}


def tell(s, how):
    """Reports that each chunk of a prompt follows the one before it."""
    if how == "attribute":
        for prompt in (A, B):
            for c, before in zip(prompt, [None] + prompt):
                os.setxattr(f"{s.mnt}/q/{c}", "user.kvcachefs.parent",
                            before.encode() if before else b"")
        return
    paths = [f"q/{c}" for c in A] + [""] + [f"q/{c}" for c in B]
    with open(f"{s.mnt}/.kvcachefs/lease", "r+b", buffering=0) as f:
        f.write("\n".join(paths).encode())
        f.read()


def pause(s):
    """Ends the request, and waits until no chunk is too young to be dropped."""
    time.sleep(1.8)
    s.settle()


def there(s):
    return {c for c in A + B if os.path.exists(f"{s.mnt}/q/{c}/0")}


def quota(s, bytes):
    os.setxattr(f"{s.mnt}/q", "user.kvcachefs.quota", str(bytes).encode())


def run_case(policy, how, options, layers, behind=False):
    """behind: prompt b has later accesses than the catalog knows, because so small a difference is
    not written."""
    s = Store(f"{policy}-{how}-{options.replace('=', '-')}-{layers}-{behind}", cpu="48M",
              size="128M",
              options=f"settle=0,high=100,low=99,{options}").mount()
    os.mkdir(f"{s.mnt}/q")
    if "policy" not in options:
        os.setxattr(f"{s.mnt}/q", "user.kvcachefs.policy", policy.encode())
    quota(s, 64 * N)
    for c in A + B:
        for l in range(layers):
            s.write(f"q/{c}/{l}", blob(ord(c[1]), N // layers))
        s.write(f"other/{c}/0", blob(1, N))
    pause(s)
    tell(s, how)
    for prompt in (B, B, B, A):  # each starts at the beginning of the prompt and is a request
        if behind and prompt is A:
            s.committed(uses=True)
            for c in B:
                s.read(f"q/{c}/0")
        for c in prompt:
            s.read(f"q/{c}/0")
    pause(s)
    order, gone = ORDER.get(policy), set()
    for left in (8, 5, 2):
        quota(s, left * N + N // 2)
        wait_for(lambda: int(s.attr("q", "used")) <= left * N + N // 2)
        gone = wait_for(lambda: (g := set(A + B) - there(s)) and len(g) >= 10 - left and g,
                        every=1.2)  # the kernel is notified a moment later
        time.sleep(1)  # a chunk stays for a moment after a lookup
        for prompt in (A, B):
            mine = [c in gone for c in prompt]
            assert mine == sorted(mine), (policy, how, options, "dropped before a child", gone)
        if order:
            assert gone == set(order[:len(gone)]), (policy, how, options, gone)
        assert len(gone) >= 10 - left, gone
    assert len(gone) < 10 and all(os.path.exists(f"{s.mnt}/other/{c}/0") for c in A + B), gone
    s.umount()


# the cases wait most of the time, so eight run at once
with concurrent.futures.ThreadPoolExecutor(8) as some:
    done = [some.submit(run_case, policy, "attribute", "partial=show", 1)
            for policy in ("lru", "fifo", "lfu", "mru", "prefix")]
    done += [some.submit(run_case, "lru", "attribute", "partial=show", 1, True),
             some.submit(run_case, "lfu", "lease", "policy=lfu", 2),
             some.submit(run_case, "fifo", "attribute", "policy=fifo,disk=off", 1),
             some.submit(run_case, "fifo", "lease", "policy=lfu,disk_policy=fifo", 2)]
    for d in done:
        d.result()
print("ok")
