#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# hearthd as administrators meet it: configuration, installation. Speaks TAP.
# usage: tests/ops_test.sh BUILD_DIR, from the root.
set -u
build=$(cd "$1" && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/hearth-ops.XXXXXX")
pid=
cleanup() {
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null
    rm -rf "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM # nothing of what is left would be true
unset HEARTH_SERVER
n=0
ok() { n=$((n + 1)); echo "ok $n - $*"; }
not_ok() { n=$((n + 1)); echo "not ok $n - $*"; sed 's/^/# /' "$dir/out"; }
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
# run CODE COMMAND..: runs it, output in $dir/out; false: another exit code
run() {
    want=$1
    shift
    "$@" >"$dir/out" 2>&1
    code=$?
    [ $code = "$want" ] || { echo "exit code $code, not $want: $*" >>"$dir/out"; return 1; }
}
said() { grep -qF -e "$1" "$dir/out" || { echo "nobody said: $1" >>"$dir/out"; return 1; }; }
check() { name=$1; shift; if "$@"; then ok "$name"; else not_ok "$name"; fi; }

# ---- configuration
conf=$dir/hearthd.conf
config() { printf '%s\n' "$@" >"$conf"; }

config_good() {
    config '# models' "store = $dir/store # here" "listen = ipc://$dir/a" "listen = tcp://127.0.0.1:7399" 'limits.rank = 5'
    run 0 "$build/hearthd" --limits-rank 6 --config "$conf" --check-config && said "limits.rank = 6" && said '# --limits-rank' &&
        said "store = $dir/store" && said "# $conf:2" && said "listen = ipc://$dir/a" && said 'listen = tcp://127.0.0.1:7399' &&
        said 'queue.length = 1024' && said '# default' || return 1
    cp "$dir/out" "$dir/again.conf" # what is printed is a file that says the same
    sed 's/ *#.*//' "$dir/out" >"$dir/values"
    run 0 "$build/hearthd" --config "$dir/again.conf" --check-config || return 1
    sed 's/ *#.*//' "$dir/out" | cmp -s - "$dir/values"
}
check 'flags are over the file, the file is over the defaults, and the print can be read again' config_good

config_bad() {
    config "store = $dir/store" 'limits.rnk = 5' 'limits.rank = 99' 'log.format = xml' 'listen' "store = $dir/other"
    run 1 "$build/hearthd" --config "$conf" --check-config && said "$conf:2: no setting 'limits.rnk'; did you mean limits.rank?" &&
        said "$conf:3: limits.rank: '99' is not between 1 and 8" && said "$conf:4: log.format: 'xml' is not one of: logfmt json" &&
        said "$conf:5: 'listen' is not NAME = VALUE" && said "$conf:6: store is set in line 1 already" || return 1
    run 2 "$build/hearthd" --config "$conf" && said "$conf:2: no setting" || return 1
    config "store = $dir/store" 'device = gpu' 'listen = http://x'
    run 1 "$build/hearthd" --config "$conf" --check-config && said "$conf:2: device: unknown device 'gpu'" &&
        said "$conf:3: listen: 'http://x' is not ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT" || return 1
    config "store = $dir/store" 'device = cpu:mem=64MiB' 'device = cpu:1,mem=64MiB' 'device = cpu:0,threads=1'
    run 1 "$build/hearthd" --config "$conf" --check-config && said "device: device cpu:0 is named twice" || return 1
    config "store = $dir/store" 'device = cpu:mem=64MiB' 'device = cpu:1,mem=4000TiB'
    run 1 "$build/hearthd" --config "$conf" --check-config && said "device: cpu:1,mem=4000TiB: device memory" || return 1
    config "store = $dir/store" "listen = ipc://$dir/sock" 'device = cpu:mem=64MiB' 'device = cpu:1,mem=64MiB'
    run 0 "$build/hearthd" --config "$conf" --check-config && said 'device = cpu:1,mem=64MiB' || return 1
    printf 'alice weight=2\nbob memory=much\n' >"$dir/tenants"
    config "store = $dir/store" "tenant.file = $dir/tenants"
    run 1 "$build/hearthd" --config "$conf" --check-config && said "$conf:2: tenant.file: $dir/tenants: line 2" || return 1
    printf 'alice weight=2\nbob memory=1GiB\n' >"$dir/tenants"
    run 0 "$build/hearthd" --config "$conf" --check-config && said "tenant.file = $dir/tenants" || return 1
    run 1 "$build/hearthd" --config "$dir/absent" --check-config && said "cannot read $dir/absent: No such file" || return 1
    run 1 "$build/hearthd" --check-config && said 'store: --store DIR is missing' || return 1
    run 1 "$build/hearthd" --store "$dir/store" --listen tcp://127.0.0.1:99999 --check-config && said 'has no port from 1' || return 1
    run 2 "$build/hearthd" --store "$dir/store" --queue-length 0 && said "queue.length: '0' is not between 1 and"
}
check 'what is wrong is told with file, line and a sentence; nothing starts' config_bad

renamed() { # a setting's old name works for one version, and help does not show it
    config "store = $dir/store" 'compute.spaces = 2'
    run 0 "$build/hearthd" --config "$conf" --engine-heartbeats 7 --check-config && said 'compute.instances = 2' && said 'engine.missed_heartbeats = 7' &&
        said "hearthd: $conf:2: 'compute.spaces' is now 'compute.instances'; the old name will be removed in the next version" &&
        said "hearthd: --engine-heartbeats: 'engine.heartbeats' is now 'engine.missed_heartbeats'; " || return 1
    run 2 "$build/hearthd" --store "$dir/store" --compute-spaces 2 --set compute.instances=3 &&
        said "hearthd: 'compute.spaces' is the old name of 'compute.instances': give only one of them" || return 1
    run 0 "$build/hearthd" --help && said compute.instances && ! grep -e compute.spaces -e compute-spaces "$dir/out"
}
check "a setting's old name works, and is warned about" renamed

# What a new user gets wrong: exit code 2 where the command line says what cannot be, 1 where the machine does; one sentence each.
one() { [ "$(wc -l <"$dir/out")" = 1 ] || { echo 'that is not one line' >>"$dir/out"; return 1; }; }
d=$build/hearthd
h=$build/hearth
daemon_wrong() {
    run 2 "$d" && said 'hearthd: store: --store DIR is missing' && one && run 2 "$d" --nonsense && said 'hearthd: there is no option --nonsense; ' && one &&
        run 2 "$d" --httpx=1 && said 'did you mean --http;' && run 2 "$d" --store && said 'hearthd: --store needs a value' && one &&
        run 2 "$d" --limits 1 && said 'hearthd: --limits begins' && one && run 2 "$d" serve && said "'serve' is not an option" && one || return 1
    s="$d --store $dir/wrong --listen ipc://$dir/wrong.sock"
    run 2 $s --http 8000 && said "hearthd: --http: '8000' is not an address such as 127.0.0.1:8000" && one &&
        run 1 $s --http 8000 --check-config && run 2 $s --metrics 127.0.0.1:8002 && said 'hearthd: --metrics: it needs --http, too' && one &&
        run 1 $s --http no.host.invalid:80 && said "'no.host.invalid' is not a host's name or address" && one &&
        run 2 "$d" --store /dev/null && said "hearthd: --store: '/dev/null' is not a folder" && one && run 2 $s --config "$dir" && said "cannot read $dir: Is a directory" && one
}
check 'hearthd says in a sentence what is wrong with its command line' daemon_wrong

daemon_taken() { # what cannot be opened together, before anything is
    s="$d --check-config --store $dir/wrong --listen ipc://$dir/wrong.sock --http 127.0.0.1:8000"
    run 0 $s --metrics 127.0.0.1:8002 && run 0 $s --metrics 127.0.0.2:8000 && run 0 $s --listen tcp://127.0.0.1:7300 || return 1
    for metrics in 127.0.0.1:8000 localhost:8000 0.0.0.0:8000 http://[::]:8000; do
        run 1 $s --metrics $metrics && said "hearthd: --metrics: '$metrics' is taken by http '127.0.0.1:8000'" && one || return 1
    done
    run 0 $s --listen tcp://127.0.0.1:7999 && run 1 $s --listen tcp://127.0.0.1:8000 &&
        said "hearthd: --http: '127.0.0.1:8000' is taken by listen 'tcp://127.0.0.1:8000'" && one || return 1
    echo text >"$dir/plain"
    run 1 "$d" --check-config --store "$dir/plain" && said "hearthd: --store: '$dir/plain' is not a folder" && one || return 1
    t="$d --check-config --store $dir/wrong --http https://127.0.0.1:8000 --tls-key $dir/plain"
    run 1 $t --tls-cert "$dir/absent.pem" && said "tls.cert: cannot open '$dir/absent.pem': No such file or directory" && one &&
        run 1 $t --tls-cert "$dir" && said "tls.cert: '$dir' is a folder, not a regular file" && one &&
        run 1 $t --tls-cert "$dir/plain" && said "tls.cert: $dir/plain is not a PEM certificate (" && one
}
check 'hearthd --check-config says what is taken twice, what is no folder, and which file of TLS cannot be read' daemon_taken

free_ports() { # the first of three that are free, one behind the other, below those that the kernel gives to clients
    perl -MIO::Socket::INET -e 'for (;;) { my $p = 10000 + int(rand(21990));
        my @on = grep { IO::Socket::INET->new(Listen => 1, ReuseAddr => 1, LocalAddr => "127.0.0.1", LocalPort => $_) } $p .. $p + 2;
        if (@on == 3) { print $p; last } }'
}
daemon_twice() { # the second one finds port, socket and store in use
    tcp=$(free_ports) # and the one for events
    http=$((tcp + 2))
    "$d" --store "$dir/twice" --listen "ipc://$dir/twice.sock" --listen "tcp://127.0.0.1:$tcp" --http "127.0.0.1:$http" >"$dir/ready" 2>&1 &
    pid=$!
    wait_for "$dir/ready" " ready: " || return 1
    run 1 "$d" --store "$dir/twice" --listen "ipc://$dir/free.sock" && said "hearthd: another hearthd uses the store $dir/twice" && one &&
        run 1 "$d" --store "$dir/free" --listen "ipc://$dir/twice.sock" && said "another hearthd already listens on ipc://$dir/twice.sock" && one &&
        run 1 "$d" --store "$dir/free" --listen "tcp://127.0.0.1:$tcp" && said "cannot listen on tcp://127.0.0.1:$tcp: Address already in use" && one &&
        run 1 "$d" --store "$dir/free" --listen "ipc://$dir/free.sock" --http "127.0.0.1:$http" &&
        said "cannot listen on http://127.0.0.1:$http: Address already in use" && one && run 0 "$h" --store "$dir/twice" ls || return 1
    kill -9 "$pid" # however it ends, the store is free
    wait "$pid" 2>/dev/null
    rm "$dir/ready"
    "$d" --store "$dir/twice" --listen "ipc://$dir/twice.sock" >"$dir/ready" 2>&1 &
    pid=$!
    wait_for "$dir/ready" " ready: " && kill -TERM "$pid" && wait "$pid" || return 1
    pid=
}

client_wrong() {
    run 1 "$h" --server "ipc://$dir/none" ls && said "hearth: no server at ipc://$dir/none" && one && run 1 "$h" --server here ls &&
        said "hearth: 'here' is not ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT" && one && run 1 "$h" --server http://127.0.0.1:8000 ls &&
        said 'is for clients of the Open Inference Protocol' && one && run 1 "$h" --server tcp://no.host.invalid:7300 ls &&
        said 'the host is not known' && one &&
        run 1 "$h" --server tcp://127.0.0.1:99999 ls && said 'a port is a number from 1 to 65535' && one &&
        run 1 "$h" --server "ipc://$dir/$(printf '%0120d' 7)" ls && said 'path has at most 107 bytes' && one &&
        run 1 "$h" --server "ipc://$dir/none" ls && said 'there is no such socket' && one &&
        run 2 "$h" --store :memory: import d tests/data/digits/digits.onnx && said '--store needs a folder' && one && [ ! -e :memory: ] &&
        run 2 "$d" --store :memory: && said 'name a folder' && one && [ ! -e :memory: ] &&
        run 1 "$h" --store "$dir/absent" ls && said "hearth: there is no store $dir/absent; " && one &&
        [ ! -e "$dir/absent" ] && run 2 "$h" stats --store "$dir/absent" extra && said 'usage: hearth stats' || return 1
    run 0 "$h" --store "$dir/present" import digits tests/data/digits/digits.onnx && run 0 "$h" --store "$dir/present" jobs && said 'no training jobs; `hearth train` starts one' &&
        run 0 "$h" --store "$dir/present" shares && said 'no tenant uses a device' &&
        run 2 "$h" data puts x && said "there is no command 'data puts'; did you mean 'put'?" && run 2 "$h" data ls x &&
        said 'data ls: these are not its arguments' && run 2 "$h" token ls && said "there is no command 'token ls'" &&
        run 1 "$h" --store "$dir/present" alias rm prod && said '`hearth alias --rm prod` removes an alias' &&
        run 1 "$h" --store "$dir/present" train digits --loss mse --data none.npz && said "no dataset 'none.npz'" &&
        said "hearth: there is no file 'none.npz' in this folder" &&
        run 1 "$h" --store "$dir/present" kmeans none.npz --k 2 && said "hearth: there is no file 'none.npz' in this folder" &&
        run 1 "$h" --store "$dir/present" plan tests/data/digits/digits.onnx && said 'to plan the file itself, give --profile FILE' &&
        run 1 "$h" --store "$dir/present" show tests/data/digits/digits.onnx && said '`hearth import NAME tests/data/digits/digits.onnx`' &&
        run 1 "$h" --store "$dir/present" plan "$dir/none.onnx" && said "there is no file '$dir/none.onnx'" &&
        run 1 "$h" --store "$dir/present" show digit && said "no model 'digit'" && one && run 1 "$h" --store "$dir/present" train digits &&
        said '--data FILE' && one && run 1 "$h" --store "$dir/present" infer digits --input tests/data/digits/images.npy --output-dir /proc/x &&
        said 'cannot make the folder /proc/x' && one
}
check 'hearth says in a sentence what is wrong: no server, no store, no such name' client_wrong

# ---- signals
# What a service manager is told: perl listens on the socket that it names.
listener() {
    perl -MIO::Socket::UNIX -MSocket -e 'my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => $ARGV[0]) or die;
        $| = 1; while (defined $s->recv(my $m, 1000)) { $m =~ s/\n/;/g; print "$m\n"; last if $m =~ /STOPPING/ }' "$dir/notify" >"$dir/told" &
}
wait_for() { # FILE TEXT
    i=0
    until grep -qF -e "$2" "$1" 2>/dev/null; do
        i=$((i + 1))
        [ $i -lt 1200 ] || { cat "$1" >"$dir/out"; echo "never came: $2" >>"$dir/out"; return 1; }
        sleep 0.05
    done
}
check 'a port, a socket and a store have one hearthd, and none behind its end' daemon_twice
reload() {
    listener
    wait_listener=$!
    i=0
    until [ -S "$dir/notify" ] || [ $i = 1200 ]; do i=$((i + 1)); sleep 0.05; done
    config "store = $dir/store" "listen = ipc://$dir/sock" 'log.level = info' 'limits.nodes = 3' 'compute.spaces = 4'
    NOTIFY_SOCKET=$dir/notify "$build/hearthd" --config "$conf" --drain-seconds 20 >"$dir/ready" 2>"$dir/log" &
    pid=$!
    wait_for "$dir/ready" " ready: " && wait_for "$dir/told" READY=1 && wait_for "$dir/log" 'event=listening url=ipc:' || return 1
    wait_for "$dir/log" "event=setting-renamed message=\"$conf:5: 'compute.spaces' is now 'compute.instances'; " || return 1
    HEARTH_SERVER=ipc://$dir/sock
    export HEARTH_SERVER
    run 1 "$build/hearth" import digits tests/data/digits/digits.onnx && said 'nodes' || return 1
    # limits of an import and the log change at once; the device waits for a restart, and says so
    config "store = $dir/store" "listen = ipc://$dir/sock" 'log.level = info' 'log.format = json' 'device = cpu:threads=1' 'drain.seconds = 9'
    kill -HUP "$pid"
    wait_for "$dir/log" '"event":"reloaded","changed":2' && wait_for "$dir/told" 'RELOADING=1;MONOTONIC_USEC=' || return 1
    wait_for "$dir/log" "$conf:5: device stays 'cpu': 'cpu:threads=1' needs a restart" || return 1
    run 0 "$build/hearth" import digits tests/data/digits/digits.onnx || return 1
    # a mistake: nothing changes
    config "store = $dir/store" 'log.format = logfmt' 'limits.nodes = many'
    kill -HUP "$pid"
    wait_for "$dir/log" "$conf:3: limits.nodes: 'many' is not a whole number" || return 1
    run 0 "$build/hearth" ls || return 1
    kill -TERM "$pid"
    wait "$pid" || return 1
    pid=
    wait "$wait_listener"
    wait_for "$dir/told" STOPPING=1 && wait_for "$dir/log" '"event":"stopped","answered":'
}
check 'SIGHUP changes what can change, refuses the rest with a sentence; the manager is told' reload
unset HEARTH_SERVER

# Signals that come as soon as its store is there: SIGHUP, where that is asked for, and SIGTERM in the end.
early() { # HUP|TERM STORE
    perl -e 'my ($signal, $store) = splice @ARGV, 0, 2; pipe(my $r, my $w) or die; my $pid = fork // die;
        if (!$pid) { open STDERR, ">&", $w; exec @ARGV; }
        close $w; my $end = time + 60;
        select undef, undef, undef, 0.0005 until -d $store || time > $end;
        kill $signal, $pid;
        while (<$r>) { print; kill "TERM", $pid if /event=reload-refused/ && $signal eq "HUP"; }
        waitpid $pid, 0; exit($? & 127 ? 128 + ($? & 127) : $? >> 8)' "$@"
}
early_signals() {
    for signal in HUP TERM; do
        run 0 early $signal "$dir/early-$signal" "$build/hearthd" --store "$dir/early-$signal" --listen "ipc://$dir/early.sock" --http 127.0.0.1:0 \
            --log-level info && said 'event=stopped' && said 'ready:' || return 1
    done
}
check 'a signal that comes before hearthd is ready is done when it is' early_signals

# ---- installation
root=$dir/root
files() { (cd "$root" && find . ! -type d | sort); }
installed() {
    run 0 make -s B="$build" install DESTDIR="$root" PREFIX=/opt/hearth || return 1
    files >"$dir/out"
    for f in bin/hearth sbin/hearthd lib/libhearth.so lib/libhearth.so.0 lib/libhearth_dnnl.so lib/pkgconfig/hearth.pc \
        share/man/man1/hearth.1 share/man/man8/hearthd.8 share/man/man3/hearth.h.3 share/bash-completion/completions/hearth \
        share/bash-completion/completions/hearthd share/zsh/site-functions/_hearth share/zsh/site-functions/_hearthd \
        include/hearth.h lib/systemd/system/hearthd.service lib/sysusers.d/hearth.conf etc/hearth/hearthd.conf; do
        said "./opt/hearth/$f" || return 1
    done
    run 0 "$root/opt/hearth/sbin/hearthd" --check-config --config "$root/opt/hearth/etc/hearth/hearthd.conf" &&
        said 'listen = ipc:///run/hearth/hearth.sock'
}
check 'make install DESTDIR= PREFIX=' installed

embedded() {
    PKG_CONFIG_PATH=$root/opt/hearth/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root
    export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
    run 0 pkg-config --modversion hearth && said "$("$build/hearth" --version | cut -d' ' -f2)" || return 1
    # shellcheck disable=SC2046
    run 0 "${CC:-cc}" -Wall -Werror -o "$dir/embed" docs/embed.c $(pkg-config --cflags --libs hearth) -Wl,-rpath,"$root/opt/hearth/lib" &&
        run 0 "$dir/embed" "$dir/store-embed" tests/data/digits/digits.onnx && said 'this is a 2'
}
if command -v pkg-config >/dev/null; then
    check 'a program built through pkg-config against what was installed runs an inference' embedded
else
    skip 'a program built through pkg-config' 'pkg-config is not installed'
fi

# Where the loader does not look, pkg-config's words say where the library is; ldconfig, here one that takes a note, is told of it.
prefix() {
    unset PKG_CONFIG_SYSROOT_DIR LD_LIBRARY_PATH
    mkdir "$dir/sbin"
    printf '#!/bin/sh\necho ran >>%s/ldconfig\n' "$dir" >"$dir/sbin/ldconfig"
    chmod +x "$dir/sbin/ldconfig"
    run 0 env PATH="$dir/sbin:$PATH" make -s B="$build" install DESTDIR="$dir/staged" PREFIX=/usr || return 1
    [ ! -e "$dir/ldconfig" ] || { echo 'ldconfig ran for what is only staged' >>"$dir/out"; return 1; }
    run 0 env PKG_CONFIG_PATH="$dir/staged/usr/lib/pkgconfig" pkg-config --libs hearth && ! grep rpath "$dir/out" || return 1
    run 0 env PATH="$dir/sbin:$PATH" make -s B="$build" install DESTDIR= PREFIX="$dir/opt/x" || return 1
    [ "$(id -u)" != 0 ] || [ "$(cat "$dir/ldconfig")" = ran ] || { echo 'ldconfig did not run once' >>"$dir/out"; return 1; }
    PKG_CONFIG_PATH=$dir/opt/x/lib/pkgconfig
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046
    run 0 "${CC:-cc}" -Wall -Werror -o "$dir/program" docs/embed.c $(pkg-config --cflags --libs hearth) &&
        run 0 "$dir/program" "$dir/store-prefix" tests/data/digits/digits.onnx && said 'this is a 2' || return 1
    run 0 env PATH="$dir/sbin:$PATH" make -s B="$build" uninstall DESTDIR= PREFIX="$dir/opt/x" && [ -z "$(find "$dir/opt/x" ! -type d)" ]
}
if command -v pkg-config >/dev/null; then
    check 'from a prefix of its own a program made through pkg-config runs; ldconfig runs for what is installed, not for what is staged' prefix
else
    skip 'a program from a prefix of its own' 'pkg-config is not installed'
fi

# ---- manual pages and completions
share=$root/opt/hearth/share
pages() {
    for page in man1/hearth.1 man8/hearthd.8 man3/hearth.h.3; do
        run 0 env LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -l "$share/man/$page" && [ -s "$dir/out" ] && ! grep -i 'warning' "$dir/out" || return 1
        col -b <"$dir/out" >"$dir/text" 2>/dev/null || cp "$dir/out" "$dir/text"
        cat "$dir/text" >>"$dir/all"
    done
    cp "$dir/all" "$dir/out"
    ! grep '@[A-Z]*@' "$dir/out" && said 'limits.message_bytes' && said '--check-config' && said '--max-batch' && said 'hearth_buffer_alloc' &&
        said '/opt/hearth/etc/hearth/hearthd.conf' || return 1
    # every command, setting and function has its place
    for word in $("$build/hearth" help | sed -n 's/^  \([a-z]*\)  .*/\1/p'); do said "$word" || return 1; done
    for word in $(grep -o '\bhearth_[a-z_]*(' client/hearth.h | tr -d '('); do said "$word" || return 1; done
}
if command -v man >/dev/null; then
    check 'manual pages are complete and without warnings' pages
else
    skip 'manual pages' 'man is not installed'
fi
new_names() { ! grep -l compute.spaces "$build/man/hearthd.8" "$build"/completions/*/*hearthd >"$dir/out"; }
check "manual page and completions have the settings' new names only" new_names
complete_bash() { # FUNCTION WORD.. : what bash would offer for the last one
    run 0 bash -c '. "$1"; shift; f=$1; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); $f; printf "%s\n" "${COMPREPLY[@]}"' - \
        "$share/bash-completion/completions/$2" "$@"
}
complete_line() { # LINE: what bash would offer for its last word
    run 0 bash -c '. "$1"; COMP_LINE=$2 COMP_POINT=${#2}; read -ra COMP_WORDS <<<"$2"; _hearth; printf "%s\n" "${COMPREPLY[@]}"' - \
        "$share/bash-completion/completions/hearth" "$1"
}
offers() { [ "$(tr '\n' ' ' <"$dir/out")" = "$1" ] || { echo "wanted: $1" >>"$dir/out"; return 1; }; }
# Names come from the store or the server that the line names; without one nothing is said, and what a server says is not run.
names() {
    run 0 "$build/hearth" --store "$dir/names" import digits tests/data/digits/digits.onnx && run 0 "$build/hearth" --store "$dir/names" import \
        untrained tests/data/digits/untrained.onnx && run 0 "$build/hearth" --store "$dir/names" train untrained --data \
        tests/data/digits/train.safetensors --loss softmax-xent --batch 512 --save-as made || return 1
    h="$build/hearth --store $dir/names"
    complete_line "$h show " && offers 'digits made untrained ' && complete_line "$h show di" && offers 'digits ' &&
        complete_line "$h train --batch 4 un" && offers 'untrained ' && complete_line "$build/hearth rm --store=$dir/names m" && offers 'made ' &&
        complete_line "$h job " && offers 'made 1 ' && complete_line "$h bench digits --on " && offers 'cpu:0 ' &&
        complete_line "$h train x --on cpu:" && offers '0 ' || return 1
    complete_line "$h train x --optimizer " && offers 'sgd momentum adam adamw ' && complete_line "$h train x --loss so" && offers 'softmax-xent ' &&
        complete_line "$h plan x --train --optimizer=ad" && offers 'adam adamw ' && complete_line "$h help con" && offers 'convsel ' &&
        complete_line "$h import x tests/data/digits/un" && offers 'tests/data/digits/untrained.onnx ' &&
        complete_line "$h infer digits --input image=tests/data/digits/im" && offers 'tests/data/digits/images.npy ' || return 1
    complete_line "$build/hearth --server ipc://$dir/nobody show " && offers ' ' || return 1
    printf '#!/bin/sh\necho '"'"'x$(touch %s/ran)'"'"'\necho "x;y"\n' "$dir" >"$dir/hearth"
    chmod +x "$dir/hearth"
    complete_line "$dir/hearth show x" && said 'x\;y' && [ ! -e "$dir/ran" ] || return 1
    # what is offered is what there is
    for word in optimizer loss; do
        complete_line "$h train x --$word " && offered=$(tr '\n' ' ' <"$dir/out" | sed 's/ $//; s/ /, /g') || return 1
        run 1 $h plan untrained --train --batch 64 --$word nothing && said "'nothing' is not one of $offered" || return 1
    done
}
completions() {
    complete_bash _hearth hearth im && [ "$(cat "$dir/out")" = import ] || return 1
    complete_bash _hearth hearth --json train new --bu && [ "$(cat "$dir/out")" = --budget ] || return 1
    complete_bash _hearth hearth train new --data tests/data/digits/tr && said tests/data/digits/train.safetensors || return 1
    complete_bash _hearth hearth train new --lr 0 && [ -z "$(cat "$dir/out")" ] || return 1
    complete_bash _hearth hearth ls --s && said --server && said --store || return 1
    complete_bash _hearthd hearthd --check && [ "$(cat "$dir/out")" = --check-config ] || return 1
    complete_bash _hearthd hearthd --limits-ra && [ "$(cat "$dir/out")" = --limits-rank ]
}
check 'bash completes commands, options and files' completions
zsh_completions() { run 0 zsh -n "$share/zsh/site-functions/_hearth" && run 0 zsh -n "$share/zsh/site-functions/_hearthd"; }
check 'bash completes models, jobs, devices, optimizers and losses' names
if command -v zsh >/dev/null; then
    check 'zsh reads its completions' zsh_completions
else
    skip 'zsh reads its completions' 'zsh is not installed'
fi

unit() {
    # paths are those of PREFIX: in the staged root they lie elsewhere
    sed "s|/opt/hearth|$root/opt/hearth|g; s|^Documentation=.*||" "$root/opt/hearth/lib/systemd/system/hearthd.service" >"$dir/hearthd.service"
    run 0 systemd-analyze verify --man=no "$dir/hearthd.service" && ! grep -q hearthd "$dir/out"
}
if command -v systemd-analyze >/dev/null; then
    check 'systemd accepts the unit' unit
else
    skip 'systemd accepts the unit' 'systemd-analyze is not installed'
fi

uninstalled() {
    echo '# changed' >>"$root/opt/hearth/etc/hearth/hearthd.conf"
    run 0 make -s B="$build" uninstall DESTDIR="$root" PREFIX=/opt/hearth || return 1
    files >"$dir/out"
    [ "$(cat "$dir/out")" = ./opt/hearth/etc/hearth/hearthd.conf ] || return 1
    cp server/daemon/hearthd.conf "$root/opt/hearth/etc/hearth/hearthd.conf"
    run 0 make -s B="$build" uninstall DESTDIR="$root" PREFIX=/opt/hearth || return 1
    [ -z "$(files)" ]
}
check 'make uninstall leaves nothing but a configuration that was changed' uninstalled
echo "1..$n"
