#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A one-node Ceph cluster with an S3 gateway on loopback, from Debian's packages, for tests of the
# s3 tier.
#   ceph-rgw.sh up DIR [PORT]    start it in DIR (some seconds); prints endpoint, bucket and keys as
#                                shell variables
#   ceph-rgw.sh down DIR         stop the daemons that `up` started there
# By default the monitor collects proposals for a second, and several proposals are needed before a
# pool can be used. The configuration below shortens that time.
# Needs: apt-get install --no-install-recommends
#   ceph-mon ceph-osd ceph-mgr radosgw ceph-common uuid-runtime curl
set -euo pipefail
cmd=${1:?up or down}; dir=$(mkdir -p "${2:?directory}" && cd "$2" && pwd); port=${3:-17480}
conf=$dir/ceph.conf
if [ "$cmd" = down ]; then
	for f in "$dir"/*.pid; do [ -s "$f" ] && kill "$(cat "$f")" 2>/dev/null || true; done
	exit 0
fi
rm -rf "${dir:?}"/*; mkdir -p "$dir"/{mon,osd,mgr,rgw,log}
fsid=$(uuidgen); osd=$(uuidgen); mon1=$((port + 1)); mon2=$((port + 2))
cat > "$conf" <<C
[global]
fsid = $fsid
mon host = v2:127.0.0.1:$mon2,v1:127.0.0.1:$mon1
public addr = 127.0.0.1
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
mon data avail crit = 1
osd crush chooseleaf type = 0
run dir = $dir
admin socket = $dir/\$name.asok
log file = $dir/log/\$name.log
pid file = $dir/\$name.pid
keyring = $dir/keyring
osd pool default pg num = 1
osd pool default pgp num = 1
osd pool default pg autoscale mode = off
paxos propose interval = 0.02
paxos min wait = 0.01
osd objectstore = memstore
memstore device bytes = 2147483648
osd data = $dir/osd
mon data = $dir/mon
mgr data = $dir/mgr
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port
rgw data = $dir/rgw
C
{
	ceph-authtool --create-keyring "$dir/keyring" --gen-key -n mon. --cap mon 'allow *'
	ceph-authtool "$dir/keyring" --gen-key -n client.admin --cap mon 'allow *' \
		--cap osd 'allow *' --cap mgr 'allow *'
	for who in osd.0 mgr.a client.rgw; do
		ceph-authtool "$dir/keyring" --gen-key -n $who --cap mon 'allow *' \
			--cap osd 'allow *' --cap mgr 'allow *'
	done
	monmaptool --create --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon2,v1:127.0.0.1:$mon1]" \
		"$dir/monmap"
	ceph-mon -c "$conf" --mkfs -i a --monmap "$dir/monmap" --keyring "$dir/keyring"
	me=(--setuser root --setgroup root)
	ceph-mon -c "$conf" -i a "${me[@]}"
	timeout 120 ceph -c "$conf" osd new "$osd"
	ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd" "${me[@]}"
	ceph-osd -c "$conf" -i 0 "${me[@]}"
	ceph-mgr -c "$conf" -i a "${me[@]}"
	timeout 120 radosgw -c "$conf" -n client.rgw "${me[@]}"
	for _ in $(seq 600); do
		curl -s -o /dev/null "http://127.0.0.1:$port/" && break
		sleep 0.1
	done
	radosgw-admin -c "$conf" user create --uid=kvcachefs --display-name=kvcachefs \
		--access-key=TESTKEY --secret-key=TESTSECRET
	curl -sf --aws-sigv4 aws:amz:us-east-1:s3 --user TESTKEY:TESTSECRET \
		-H 'x-amz-content-sha256: UNSIGNED-PAYLOAD' \
		-X PUT "http://127.0.0.1:$port/kvcachefs"
} > "$dir/up.log" 2>&1 || { tail -20 "$dir/up.log" >&2; exit 1; }
echo "S3_ENDPOINT=http://127.0.0.1:$port S3_BUCKET=kvcachefs S3_REGION=us-east-1" \
	"AWS_ACCESS_KEY_ID=TESTKEY AWS_SECRET_ACCESS_KEY=TESTSECRET"
