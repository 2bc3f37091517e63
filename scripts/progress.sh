# How the scripts of this folder tell what they do and how far they are. To be sourced, with `set -euo pipefail`.

# duration SECONDS: prints "45 s", "1 min 10 s" or "1 h 5 min".
duration() {
  if [ "$1" -lt 60 ]; then
    echo "$1 s"
  elif [ "$1" -lt 3600 ]; then
    echo "$(($1 / 60)) min $(($1 % 60)) s"
  else
    echo "$(($1 / 3600)) h $(($1 % 3600 / 60)) min"
  fi
}

# stage WHAT COMMAND...: runs the command as the next of $stages stages and tells on standard error what it does and how long it took.
# When the command fails, so does the script, with the same exit status.
stage_number=0
stage() {
  local what=$1 begun=$SECONDS status=0 name
  shift
  stage_number=$((stage_number + 1))
  name="stage $stage_number of $stages"
  echo "$name: $what" >&2
  "$@" || status=$?
  if [ "$status" -ne 0 ]; then
    echo "$name: FAILED after $(duration $((SECONDS - begun))), exit status $status: $what" >&2
    exit "$status"
  fi
  echo "$name: done in $(duration $((SECONDS - begun)))" >&2
}

# tenths WHAT DONE ALL BEGUN: prints "WHAT: 40 % (83 of 206), 1 min 10 s" whenever another tenth is done, and nothing in between. BEGUN is $SECONDS at
# the beginning; `tenths_told=0` starts again.
tenths_told=0
tenths() {
  local tenth=$(($2 * 10 / $3))
  [ "$tenth" -gt "$tenths_told" ] || return 0
  tenths_told=$tenth
  echo "$1: $(($2 * 100 / $3)) % ($2 of $3), $(duration $((SECONDS - $4)))"
}
