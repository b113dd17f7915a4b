# SPDX-License-Identifier: Apache-2.0
# ways: none
"""The s3 tier and the behaviour of services. A refusal of one kind of request does not stop the
other kinds and is named in the log. Listings are complete or fail. Uploads have equal parts and
escaped ids, and none is left unfinished. A missing object, a refused object and a lost bucket are
distinguished."""
import os
from kvtest import KiB, MiB, TMP, beside, wait_for
from s3 import Bucket, Tier, error


def refusals(which):
    """Writes are refused in many ways: reads go on, and the log has the service's words."""
    answer = [None]
    b = Bucket(lambda r: answer[0] if r.command in ("PUT", "POST") else None)
    t = Tier(b.url(), deadline=6000)
    assert t("put", "a", 100000) == "0"
    html = {"Content-Type": "text/html"}
    for status, body, name, words in (
            (507, error("XMinioStorageFull", "disk path full"), "ENOSPC", "XMinioStorageFull"),
            (507, b"", "ENOSPC", "507"),
            (403, error("QuotaExceeded"), "EDQUOT", "QuotaExceeded"),
            (400, error("XMinioAdminBucketQuotaExceeded"), "EDQUOT", "XMinioAdminBucketQuota"),
            (403, error("AccessDenied", "not allowed: s3:PutObject"), "EACCES", "s3:PutObject"),
            (503, error("SlowDown", "reduce your rate"), "EBUSY", "SlowDown"),
            (503, b"<html/>", "EBUSY", "503"), (429, b"", "EBUSY", "429"),
            (413, b"<html>413</html>", "EFBIG", "413"),
            (400, error("EntityTooLarge"), "EFBIG", "EntityTooLarge"),
            (405, error("MethodNotAllowed"), "EROFS", "MethodNotAllowed"),
            (400, error("KeyTooLongError"), "ENAMETOOLONG", "KeyTooLong"),
            (400, error("InvalidRequest", "Content-MD5 is required"), "EIO", "checksum=md5"),
            (403, error("RequestTimeTooSkewed", "too large"), "EACCES", "clock differs"),
            (301, error("PermanentRedirect", "elsewhere", "<Endpoint>b.s3.example</Endpoint>"),
             "EACCES", "the bucket is at b.s3.example: set endpoint= and region="),
            (400, error("AuthorizationHeaderMalformed", "", "<Region>eu-west-1</Region>"),
             "EACCES", "region eu-west-1"),
            (404, error("NoSuchBucket"), "EIO", "NoSuchBucket"))[which::3]:
        answer[0] = status, body
        assert (got := t("put", "b", 5000)) == name, (status, body, got)
        wait_for(lambda: words in t.log() or t("put", "b", 5000) == "")
        assert t("get", "a", 100000) == "0", status
    answer[0] = 200, b"<html>sign in</html>", html
    assert t("put", "b", 5000) == "EIO"  # a proxy's page does not count as success
    answer[0] = None
    assert t("put", "b", 5000) == "0" and t("remove", "b") == "0"
    assert "works again" in t.log() and "secret" not in t.log()
    t.end()


def absence():
    """404 of the key; 403 without permission to list; 403 of one object; an archive."""
    answer = {}
    b = Bucket(lambda r: next((v for k, v in answer.items() if r.command == "GET"
                               and k in r.target), None))
    t = Tier(b.url(), deadline=6000)
    assert t("put", "a", 20 * KiB) == "0" and t("put", "b", 20 * KiB) == "0"
    key = next(iter(b.objects))
    assert t("get", "none", 5000) == "ENOENT"
    answer[key] = 403, error("AccessDenied", "by a policy")
    assert t("get-unknown", "a", 0) == t("get", "a", 20 * KiB) == "EIO"  # it may be there
    assert "by a policy" in t.log()
    answer[key] = 403, error("InvalidObjectState", "in an archive")
    assert t("get", "a", 20 * KiB) == "ENOENT"
    for bare in ((403, b""), (500, b""), (404, b"<html/>"), (404, error("NoSuchBucket"))):
        answer[key] = bare
        assert t("get", "a", 20 * KiB) == "EIO", bare
    answer.clear()
    t.end()
    b.may_list = False
    t = Tier(b.url(), deadline=6000)
    assert t("get", "none", 5000) == "EIO"  # known, and nothing else was read yet
    assert t("get", "a", 20 * KiB) == "0"
    assert t("get", "none", 5000) == t("get-unknown", "none", 0) == "ENOENT"
    answer["/kv/"] = 403, error("AccessDenied", "all of it")  # permission is gone, objects are not
    assert t("get", "a", 20 * KiB) == t("get", "b", 20 * KiB) == "EIO"
    assert t("list") == "EACCES 0"
    t.end()


def listings():
    """Tokens of all kinds, and pages that are cut, repeat themselves or lead nowhere."""
    change = [lambda page: page]

    def how(r):
        if "list-type" in r.query and not b.refused(r):
            status, page = b.usual(r)[:2]
            return status, change[0](page)
        return None

    b = Bucket(how)
    t = Tier(b.url())
    for i in range(25):
        assert t("put", f"k{i}", 5000) == "0"
    b.objects["kv/a&b/" + "x" * 1000] = b"not ours"
    assert t("list") == "0 25"
    b.page = 7
    for token in ("%d", "a+b/c=%d", "<a&b>%d", "x" * 5000 + "%d", "~'\"%d é"):
        b.token = token
        assert (got := t("list")) == "0 25", (token[:20], got)
    b.token = "%d"
    for wrong in (lambda p: p[:len(p) // 2], lambda p: b"", lambda p: b"<html>hello</html>",
                  lambda p: p.replace(b"NextContinuationToken", b"Next"),
                  lambda p: p.replace(b"</ListBucketResult>", b""),
                  lambda p: b"<Error><Code>InternalError</Code></Error>",
                  lambda p: b"<ListBucketResult><IsTruncated>true</IsTruncated>"
                            b"<NextContinuationToken>%d</NextContinuationToken>"
                            b"</ListBucketResult>" % len(b.log)):
        change[0] = wrong
        got = t("list").split()
        assert got[0] == "EIO", (got, wrong(b"x"))
    first = []
    change[0] = lambda p: first[0] if first else first.append(p) or p
    assert t("list").split()[0] == "EIO"  # the same page for ever
    t.end()


def ranges():
    b = Bucket()
    t = Tier(b.url())
    assert t("put", "a", 100001) == "0" and t("put", "big", 20 * MiB + 5) == "0"
    b.ranges = False
    assert t("get", "a", 100001) == "0" and t("get", "big", 20 * MiB + 5) == "0"
    assert "ignores the Range" in t.log()
    t.end()


def uploads():
    """Equal parts, ids and ETags with reserved characters, aborts, uploads of killed daemons."""
    fail = [None]
    b = Bucket(lambda r: fail[0] if fail[0] and "partNumber" in r.query else None)
    b.equal_parts = True
    store = f"{TMP}/uploads"
    os.makedirs(store)
    t = Tier(b.url(), deadline=6000, store=store)
    assert t("put", "exact", 8 * MiB - 4096) == "0" and not b.ended  # one request
    for upload_id in ("plain%d", "a&b<%d", "2~XlNd+M%d", "APDc/9+dF=%d", "x" * 2000 + "%d"):
        b.upload_id = upload_id
        size = 25 * MiB + len(b.log)
        assert t("put", "big", size) == "0" and t("get", "big", size) == "0", upload_id
    data = next(o for o in b.objects.values() if len(o) > 24 * MiB)
    assert len(data) == size + 4096
    for answer in ((403, error("QuotaExceeded")), (500, b""), (404, error("NoSuchUpload"))):
        fail[0] = answer
        assert t("put", "big", 25 * MiB) != "0"
    fail[0] = None
    assert not b.uploads and not os.listdir(f"{store}/s3-uploads")
    assert t("get", "big", size) == "0"  # the old one is still there
    # a 200 that is a failure
    b.how = lambda r: (200, error("InternalError")) if (r.command, "uploadId" in r.query) == (
        "POST", True) else None
    assert t("put", "big", 25 * MiB) == "EIO" and not b.uploads
    b.how = lambda r: None
    # killed in the middle
    killed = []

    def kill(r):
        if "partNumber" in r.query and not killed:
            killed.append(t.kill())
    b.how = kill
    assert t("put", "big", 25 * MiB) == ""
    wait_for(lambda: killed)
    left = list(b.uploads)
    assert len(left) == 1
    b.how = lambda r: None
    # uploads of another node, old and new; and a foreign one
    ours, _ = b.initiated[left[0]]
    for upload, key, at in (("old", ours, "2020-01-01T00:00:00.000Z"),
                            ("new", ours, "2999-01-01T00:00:00.000Z"),
                            ("foreign", "kv/else", "2020-01-01T00:00:00.000Z")):
        b.uploads[upload], b.initiated[upload] = {}, (key, at)
    t = Tier(b.url(), store=store)
    assert t("start") == "0"
    wait_for(lambda: set(b.uploads) == {"new", "foreign"})
    wait_for(lambda: not os.listdir(f"{store}/s3-uploads"))
    t.end()


def places():
    """Addressing, encryption, checksums, prefixes."""
    b = Bucket()
    b.virtual = True
    t = Tier(b.url(more="&addressing=path"))
    assert t("put", "a", 5000) == "EACCES" and "addressing=virtual" in t.log()
    t.end()
    for host in ("localhost", "127.0.0.1"):  # as configured, and as the service requests
        for more in ("&addressing=virtual", ""):
            t = Tier(b.url(host=host, more=more))
            assert t("put", "a", 20 * MiB) == t("get", "a", 20 * MiB) == "0", (host, more)
            assert t("list") == "0 1"
            t.end()
    b.virtual = False
    b.headers.clear()
    t = Tier(b.url(more="&sse=aws:kms&sse_key=arn:aws:kms:eu-west-1:1:key/2&checksum=md5"))
    assert t("put", "a", 20 * MiB) == t("get", "a", 20 * MiB) == "0"
    kms = [h.get("x-amz-server-side-encryption-aws-kms-key-id") for h in b.headers]
    assert kms[0] == "arn:aws:kms:eu-west-1:1:key/2" and not any(kms[1:]), kms
    assert all("content-md5" in {k.lower() for k in h} for h in b.headers[1:4])
    t.end()
    t = Tier(b.url(more="&sse=AES256&checksum=sha256"))
    assert t("put", "a", 5000) == "0"
    assert b.headers[-1]["x-amz-server-side-encryption"] == "AES256"
    assert len(b.headers[-1]["x-amz-content-sha256"]) == 64
    t.end()
    long = "p" * 800
    one, two = Tier(b.url(long + "a")), Tier(b.url(long + "b"))
    assert one("put", "x", 5000) == "0" and two("get", "x", 5000) == "ENOENT"
    one.end()
    two.end()
    for wrong, word in ((b.url("a/../b"), "empty parts, . or .."),
                        (b.url("a//b"), "empty parts, . or .."),
                        (b.url("a*"), "letters"),
                        (b.url(more="&sse=rot13"), "sse="), (b.url(more="&auth=x"), "auth="),
                        (b.url(more="&addressing=x"), "addressing="),
                        (b.url(more="&region=" + "r" * 70), "region= is too long"),
                        (b.url(more="&checksum=crc"), "checksum=")):
        t = Tier(wrong)
        assert word in t.opened and t.process.wait() == 1, (wrong, t.opened)


def idle_connections():
    """Connections that were dropped without a word cost a part of the deadline, once."""
    from fakes import Frozen
    b = Bucket()
    way = Frozen(b.port)
    b.port = way.port
    t = Tier(b.url(), deadline=20000)
    assert t("put", "a", 5000) == "0"
    wait_for(lambda: way.age() > 1.2)
    way.freeze()
    assert t("get", "a", 5000) == "0"
    t.end()


PARTS = absence, listings, ranges, uploads, places, idle_connections
beside([(refusals, i) for i in range(3)] + [(part,) for part in PARTS], most=6)
