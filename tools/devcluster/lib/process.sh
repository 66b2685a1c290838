# shellcheck shell=bash  # sourced, after settings.sh
# Background processes: started once, known by a pid file, ended by pid.

PIDS=$DEVCLUSTER_STATE/pids
LOGS=$DEVCLUSTER_STATE/logs

# lock: one script at a time works on a cluster.
lock() {
  exec 9<"$DEVCLUSTER_STATE"
  flock --nonblock 9 ||
    fail "$MACHINE" "another script is working on the cluster in $DEVCLUSTER_STATE: wait for it to end"
}

# start_time PID: field 22 of /proc/PID/stat, which tells a process from a later one with the same pid; of one
# that has ended and that nobody has waited for, nothing.
start_time() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" {print $20}'; }

# pid_of NAME: the pid, if it runs.
pid_of() {
  local pid started
  [[ -f $PIDS/$1 ]] && read -r pid started <"$PIDS/$1" &&
    [[ -n $started && $(start_time "$pid") == "$started" ]] && echo "$pid"
}

alive() { pid_of "$1" >/dev/null; }

# start NAME COMMAND...: starts the command in a session of its own, unless NAME runs already.
start() {
  local name=$1 pid
  shift
  alive "$name" && return
  # The lock (9) must not outlive the script that holds it.
  setsid "$@" >"$LOGS/$name.log" 2>&1 </dev/null 9>&- &
  pid=$!
  printf '%s %s\n' "$pid" "$(start_time "$pid")" >"$PIDS/$name"
}

# wait_for NAME SECONDS COMMAND...: waits until NAME runs and the command succeeds.
wait_for() {
  local name=$1 limit=$2 deadline=$((SECONDS + $2))
  shift 2
  while alive "$name" && ((SECONDS < deadline)); do
    "$@" >/dev/null 2>&1 && alive "$name" && return
    sleep 0.2
  done
  tail -n 15 "$LOGS/$name.log" >&2
  if alive "$name"; then
    fail "$MACHINE" "$name was not ready after $limit s (waited for: $*). Its log: $LOGS/$name.log"
  fi
  fail "$MACHINE" "$name ended before it was ready. Its log: $LOGS/$name.log"
}

# stop SECONDS NAME...: ends the processes by their pids, by force those that take longer.
stop() {
  local deadline=$((SECONDS + $1)) name pid
  shift
  for name in "$@"; do
    ! pid=$(pid_of "$name") || kill "$pid" 2>/dev/null || true
  done
  for name in "$@"; do
    while pid=$(pid_of "$name"); do
      ((SECONDS < deadline)) || kill -KILL "$pid" 2>/dev/null || true
      sleep 0.1
    done
    rm -f "$PIDS/$name"
  done
}

# healthy URL [CURL OPTION...]
healthy() { curl --silent --fail --insecure --noproxy '*' --max-time 2 "${@:2}" "$1"; }
