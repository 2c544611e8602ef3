#!/usr/bin/env bash
# Several hosts on one machine: network namespaces on one bridge, each link shaped both ways, for root.
set -euo pipefail

usage="usage: hosts.sh up N RATE BURST         makes N hosts on links of RATE, as tc writes it: 1gbit; or none
       hosts.sh run N PROGRAM ARGS...  starts the ranks of one job on them and waits for all
       hosts.sh down N                 ends what runs on the hosts, and removes them
       hosts.sh with N RATE BURST PROGRAM ARGS...
                                       all three
       hosts.sh hold N RATE BURST      makes them, prints \"ready\", removes them when its input ends

HOSTS           what the names of the namespaces begin with [brv; brv and the process id for 'with']
RANKS_PER_HOST  ranks on each host, in blocks: ranks 0 and 1 on the first, and so on [1]
PORT            where rank 0 waits; PORT + 1 is torch's [5123]
GRACE           seconds that ranks may go on after one has failed [10]

Each rank has the variables of a job: BREVITY_RANK, BREVITY_WORLD_SIZE, BREVITY_MASTER, BREVITY_KEY and
BREVITY_HOST_ID; RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT and GLOO_SOCKET_IFNAME. The hosts are
10.99.0.1 and so on, under reno, and reach nothing else. Bursts that suit: 256kb at 1gbit for long vectors,
32kb at 100mbit for short messages."

fail() {
    echo "hosts.sh: $*" >&2
    exit 2
}

# A number from 1 to $3.
check_number() {
    [[ $2 =~ ^[1-9][0-9]{0,4}$ ]] && [ "$2" -le "$3" ] || fail "$1 is '$2': expected a number from 1 to $3"
}

check_machine() {
    local program
    [ "$(id -u)" = 0 ] || fail "only root may make network namespaces: run it with sudo"
    for program in ip tc; do
        command -v $program >/dev/null || fail "there is no '$program': install Debian's iproute2"
    done
}

bridge() { echo "$hosts-bridge"; }
host() { echo "$hosts-$1"; }

make_host() {
    local name port=port$1
    name=$(host "$1")
    ip netns add "$name"
    ip -n "$name" link set lo up
    ip -n "$(bridge)" link add "$port" type veth peer name eth0 netns "$name"
    ip -n "$name" addr add "10.99.0.$1/24" dev eth0
    ip -n "$name" link set eth0 up
    ip -n "$(bridge)" link set "$port" master br0 up
    ip netns exec "$name" sh -c 'echo reno >/proc/sys/net/ipv4/tcp_congestion_control'
    [ "$rate" != none ] || return 0
    local shaped=(root tbf rate "$rate" burst "$burst" latency 50ms)
    tc -n "$name" qdisc add dev eth0 "${shaped[@]}"
    tc -n "$(bridge)" qdisc add dev "$port" "${shaped[@]}"
}

up() {
    local index
    ip netns add "$(bridge)" || fail "the name '$hosts' is in use: run 'down', or set HOSTS to another name"
    # Whatever fails from here on, nothing stays behind.
    made=1
    ip -n "$(bridge)" link set lo up
    ip -n "$(bridge)" link add br0 type bridge
    ip -n "$(bridge)" link set br0 up
    for index in $(seq 1 "$count"); do make_host "$index"; done
}

down() {
    local index name
    for name in $(for index in $(seq 1 "$count"); do host "$index"; done) "$(bridge)"; do
        [ -e "/run/netns/$name" ] || continue
        ip netns pids "$name" | xargs --no-run-if-empty kill -KILL 2>/dev/null || true
        ip netns del "$name" || true
    done
}

# Starts one rank; its processes are a session, so that they can be ended together.
start_rank() {
    local rank=$1 place=$(($1 / per_host + 1))
    shift
    setsid ip netns exec "$(host $place)" env BREVITY_RANK="$rank" BREVITY_WORLD_SIZE="$ranks" \
        BREVITY_MASTER="10.99.0.1:$port" BREVITY_KEY="$key" BREVITY_HOST_ID="$(host $place)" \
        RANK="$rank" WORLD_SIZE="$ranks" LOCAL_RANK=$((rank % per_host)) MASTER_ADDR=10.99.0.1 \
        MASTER_PORT=$((port + 1)) GLOO_SOCKET_IFNAME=eth0 "$@" &
    running[$!]=$rank
}

end_ranks() {
    local process
    for process in "${!running[@]}"; do kill "-$1" -- "-$process" 2>/dev/null || true; done
}

# Starts the ranks and waits for them. The status is that of the first that fails; the others then have GRACE
# seconds.
run() {
    local rank process ended status=0
    key=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    [ -e "/run/netns/$(host "$count")" ] || fail "there is no host '$(host "$count")': run 'up' first"
    for rank in $(seq 0 $((ranks - 1))); do start_rank "$rank" "$@"; done
    while [ "${#running[@]}" -gt 0 ]; do
        ended=0
        wait -n -p process "${!running[@]}" ${watch:+"$watch"} || ended=$?
        if [ "$process" = "$watch" ]; then
            watch=
            end_ranks KILL
            continue
        fi
        unset "running[$process]"
        if [ "$ended" != 0 ] && [ "$status" = 0 ]; then
            status=$ended
            sleep "$grace" &
            watch=$!
        fi
        # The shell's own lines about processes that were killed are of no use.
    done 2>/dev/null
    return "$status"
}

# Whether a process of a rank is left.
is_running() {
    local process
    for process in "${!running[@]}"; do ! kill -0 -- "-$process" 2>/dev/null || return 0; done
    return 1
}

clean_up() {
    local status=$? look
    trap '' EXIT HUP INT TERM
    # What is wrong while everything ends is of no interest.
    set +e
    exec 2>/dev/null
    [ -z "$watch" ] || kill "$watch"
    end_ranks TERM
    for look in $(seq 20); do
        is_running || break
        sleep 0.1
    done
    end_ranks KILL
    if [ -n "$made" ]; then down; fi
    exit "$status"
}

[ $# -ge 1 ] || { echo "$usage" >&2; exit 2; }
action=$1
shift
case $action in
up | hold) [ $# = 3 ] ;;
down) [ $# = 1 ] ;;
run) [ $# -ge 2 ] ;;
with) [ $# -ge 4 ] ;;
-h | --help | help)
    echo "$usage"
    exit 0
    ;;
*) false ;;
esac || { echo "$usage" >&2; exit 2; }

count=$1 per_host=${RANKS_PER_HOST:-1} port=${PORT:-5123} grace=${GRACE:-10}
shift
check_number N "$count" 250
check_number RANKS_PER_HOST "$per_host" 64
check_number PORT "$port" 65534
check_number GRACE "$grace" 3600
check_machine
ranks=$((count * per_host)) hosts=${HOSTS:-brv} made='' watch=''
declare -A running=()
case $action in with | hold) hosts=${HOSTS:-brv$$} ;; esac
[[ $hosts =~ ^[A-Za-z0-9_-]{1,40}$ ]] || fail "HOSTS is '$hosts': expected letters, digits, - and _"

trap clean_up EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

case $action in
up)
    rate=$1 burst=$2
    up
    made=
    ;;
run) run "$@" ;;
down) down ;;
with)
    rate=$1 burst=$2
    shift 2
    up
    run "$@"
    ;;
hold)
    rate=$1 burst=$2
    up
    echo ready
    # In the background: a signal is not heard while something is read.
    cat >/dev/null <&0 &
    wait $!
    ;;
esac
