#!/bin/sh
# Learns the photos that arrived today and stops for a person if the update is refused.
#   learn-nightly.sh STATE INBOX DONE [ser learn options...]
# In a crontab:  15 2 * * *  /opt/ser/learn-nightly.sh /var/lib/ser/model /srv/photos/inbox /srv/photos/done
# INBOX holds a folder for each class. Exit codes: 0 learnt or nothing to do; 3 the update was refused and waits as the
# candidate (ser status STATE; ser learn ... --accept); anything else is an error. Only learnt photos are moved.
set -eu
state=$1 inbox=$2 done=$3
shift 3
SER=${SER:-ser}
refused=$inbox/.refused
if [ -e "$refused" ]; then
  echo "the last update was refused; look at it (ser status $state), then remove $refused" >&2
  exit 3
fi
if [ -z "$(find "$inbox" -mindepth 2 -type f -print -quit)" ]; then
  echo "no new photos in $inbox"
  exit 0
fi
code=0
"$SER" learn "$state" --data "$inbox" "$@" || code=$?
if [ "$code" = 3 ]; then
  date > "$refused"
  exit 3
fi
[ "$code" = 0 ] || exit "$code"
today=$done/$(date +%Y-%m-%dT%H%M%S)
mkdir -p "$today"
for class in "$inbox"/*/; do
  mv "$class" "$today/"
done
echo "learnt; the photos are in $today now"
