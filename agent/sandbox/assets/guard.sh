# Ends the process group $1 when standard input ends, which it does however the owner of the pipe's other end ends,
# SIGKILL included. $2: tenths of a second between SIGTERM and SIGKILL (0: SIGKILL at once).
# $3: a directory to remove when nothing of the group is left, or empty.
trap '' HUP INT QUIT TERM
group=$1 grace=$2 directory=$3

gone() { ! kill -s 0 -- "-$group" 2>/dev/null; }
await() {
  left=$1
  until gone; do
    [ "$left" -gt 0 ] || return 1
    left=$((left - 1))
    sleep 0.1
  done
}

# Until then, every line is an order, a signal and the process that shall get it, and is answered with a line.
while read -r signal process; do
  kill -s "$signal" "$process" 2>/dev/null
  echo sent
done
exec >/dev/null

if [ "$grace" -gt 0 ]; then
  kill -s TERM -- "-$group" 2>/dev/null
  kill -s CONT -- "-$group" 2>/dev/null # a stopped process does not see SIGTERM
  await "$grace"
fi
kill -s KILL -- "-$group" 2>/dev/null
await 50
[ -z "$directory" ] || rm -rf -- "$directory" || { sleep 0.2; rm -rf -- "$directory"; }
