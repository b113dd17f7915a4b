# SPDX-License-Identifier: Apache-2.0
# ways: none
"""tests/engines/run refuses a word that selects no driver, before it installs or starts anything.
The message is one line and lists the drivers. A missing build is refused with the usage."""
import glob
from kvtest import *

program = os.path.join(os.path.dirname(__file__), "../../engines/run")
env = dict(os.environ, KV_ENGINES_ENV="/dev/null/absent", KV_TMP=TMP)


def refused(*arguments):
    """Returns the message."""
    p = subprocess.run([program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, env=env)
    assert p.returncode == 1 and p.stdout.count("\n") == 1, (arguments, p.returncode, p.stdout)
    assert not glob.glob(f"{TMP}/kve-*"), "it left its folder"
    return p.stdout


for words in ("nixxl",), ("lmcache", "foo"), ("whole", "kill and mount", "vlm fs tier"), ("LoRA",):
    said = refused(BUILD, *words)
    for name in words[-1], "safetensors, lmcache, vllm, sglang, nixl, aibrix and whole":
        assert name in said, (words, said)
for arguments in (), ("lmcache",), (TMP, "lmcache"):
    assert "usage: tests/engines/run BUILD" in refused(*arguments)
