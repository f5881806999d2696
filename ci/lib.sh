# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What ci/test and ci/nightly share: building a preset, running its tests with every silent
# failure made loud, running parts and printing the table. Sourced, never run.
#
# A part is a function part_<name>. It fails by a nonzero status. It counts as one test unless
# it calls count. The sourcing script sets `table`, one row a part:
# name|file that must exist|what it shows
# It may set `beside`: names of parts that use one core; those of them that follow each other run at once, as
# many as there are jobs. It may define part_over NAME SECONDS, called when a part has passed.

: "${table:?ci/lib.sh is sourced by ci/test and ci/nightly}"

jobs=${CI_JOBS:-$(nproc)}
# Most tests wait more than they work, so twice as many run at once; tests/weights says which take more than half a core.
test_jobs=${CI_TEST_JOBS:-$((2 * jobs))}

# count PASSED FAILED: adds to the numbers of the current part.
count() {
    echo "$1 $2" >>"$count_file"
}

# count_lines COMMAND...: runs a script whose last line is "N passed, N failed", and counts those.
count_lines() {
    local log rc=0
    log=$(mktemp)
    "$@" | tee "$log" || rc=1
    if [[ "$(tail -n 1 "$log")" =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed$ ]]; then
        count "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}"
    else
        echo "$1: the last line is not \"N passed, N failed\""
        rc=1
    fi
    rm -f "$log"
    return "$rc"
}

# build PRESET [TARGET...]
build() {
    local preset=$1
    shift
    cmake --preset "$preset" >"build/$preset.configure.log" 2>&1 || {
        cat "build/$preset.configure.log"
        return 1
    }
    cmake --build --preset "$preset" -j "$jobs" ${1+--target "$@"}
}

# Sanitizer reports go to files: Criterion lets a leak pass, a child's report may be lost.
sanitizer_env() {
    local to=$1
    export ASAN_OPTIONS="detect_stack_use_after_return=1:strict_string_checks=1:log_path=$to/asan"
    export UBSAN_OPTIONS="print_stacktrace=1:log_path=$to/ubsan"
    export TSAN_OPTIONS="second_deadlock_stack=1:log_path=$to/tsan"
}

# fresh_dir DIR: empty, made anew.
fresh_dir() {
    rm -rf "$1"
    mkdir -p "$1"
}

# The tests that skipped in preset $1, in the form of tests/expected-skips.
skipped_tests() {
    local preset=$1 tap
    sed -n 's/.*<testcase name="\([^"]*\)".* status="\(notrun\|disabled\)".*/\1/p' \
        "build/$preset/junit.xml" | sed "s|^\(.*\)|$preset \1 -|"
    for tap in "build/$preset/reports"/*.tap; do
        [ -e "$tap" ] || continue
        sed -n 's/^ok - \([^ ]*\)  *# SKIP.*/\1/p' "$tap" |
            sed "s|^|$preset $(basename "$tap" .tap) |"
    done
}

# check_skips PRESET: the skipped tests are exactly the expected ones.
check_skips() {
    local preset=$1 expected actual
    expected=$(grep -v '^#' tests/expected-skips | awk -v p="$preset" '$1 == p' | sort)
    actual=$(skipped_tests "$preset" | sort)
    if [ "$expected" != "$actual" ]; then
        echo "skipped tests in '$preset' differ from tests/expected-skips (< expected, > skipped):"
        diff <(echo "$expected") <(echo "$actual")
        return 1
    fi
}

# check_reports DIR: no sanitizer wrote a report.
check_reports() {
    local reports
    reports=$(find "$1" -type f)
    [ -n "$reports" ] || return 0
    echo "sanitizer reports:"
    while IFS= read -r report; do
        echo "--- $report"
        head -n 60 "$report"
    done <<<"$reports"
    return 1
}

# run_ctest PRESET ARG...: ctest in build/PRESET, counted test by test; an unexpected skip and a
# sanitizer report each count as one more failure. A test that failed is tried once more, and named at the end.
# With `repeat` set, ctest's argument of that name, each test runs more often.
run_ctest() {
    local preset=$1 dir=$PWD/build/$1 rc=0 total failed skipped
    shift
    fresh_dir "$dir/reports"
    fresh_dir "$dir/sanitizer"
    rm -f "$dir/junit.xml"
    (
        sanitizer_env "$dir/sanitizer"
        ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "$test_jobs" --repeat "${repeat:-until-pass:2}" \
            --output-junit "$dir/junit.xml" "$@" | tee "$dir/ctest.log"
    ) || rc=1
    if [ -z "${repeat-}" ] && grep -qE '\*\*\*(Failed|Timeout|Exception)' "$dir/ctest.log"; then
        echo "failed at least once in '$preset' (docs/status.md, Known gaps):"
        grep -E '\*\*\*(Failed|Timeout|Exception)' "$dir/ctest.log"
    fi
    if [ ! -s "$dir/junit.xml" ]; then
        echo "ctest left no report"
        return 1
    fi
    # ctest writes one attribute a line in the head of the file.
    total=$(sed -n '0,/tests="/s/.*tests="\([0-9]*\)".*/\1/p' "$dir/junit.xml")
    failed=$(grep -c 'status="fail"' "$dir/junit.xml" || true)
    skipped=$(grep -cE 'status="(notrun|disabled)"' "$dir/junit.xml" || true)
    if [ "$rc" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
    fi
    count $((total - failed - skipped)) "$failed"
    check_skips "$preset" || { count 0 1; rc=1; }
    check_reports "$dir/sanitizer" || { count 0 1; rc=1; }
    return "$rc"
}

# expect_report PRESET CANARY PATTERN: the program with a planted fault is reported, and by the
# sanitizer that we think is awake.
expect_report() {
    local program=$PWD/build/$1/tests/$2 dir=$PWD/build/$1/canary/$2
    fresh_dir "$dir"
    (
        sanitizer_env "$dir"
        "$program" >"$dir.out" 2>&1
    ) || true
    if grep -rqs -e "$3" "$dir"; then
        count 1 0
        return 0
    fi
    echo "$2: the planted fault was not reported ($3)"
    cat "$dir.out"
    count 0 1
    return 1
}

# parts_of_table: names of the rows of $table whose needed file exists.
parts_of_table() {
    local name needs text
    while IFS='|' read -r name needs text; do
        [ -n "$name" ] || continue
        [ -n "$needs" ] && [ ! -e "$needs" ] && continue
        echo "$name"
    done <<<"$table"
}

list_parts() {
    local name needs text
    while IFS='|' read -r name needs text; do
        [ -n "$name" ] || continue
        if [ -n "$needs" ] && [ ! -e "$needs" ]; then
            printf '%-12s (not here yet: %s does not exist)\n' "$name" "$needs"
        else
            printf '%-12s %s\n' "$name" "$text"
        fi
    done <<<"$table"
}

summary=()
passed=0
failed=0

# run_one NAME FILE: runs the part, and leaves "PASSED FAILED SECONDS" in FILE.
run_one() {
    local name=$1 begin end rc p f
    count_file=$(mktemp)
    begin=$(date +%s.%N)
    # In its own shell, not in a condition: there `set -e` would be off inside.
    (
        set -euo pipefail
        "part_${name//-/_}"
    )
    rc=$?
    end=$(date +%s.%N)
    read -r p f < <(awk '{ p += $1; f += $2 } END { print p + 0, f + 0 }' "$count_file")
    rm -f "$count_file"
    if [ "$rc" -eq 0 ] && [ "$p" -eq 0 ] && [ "$f" -eq 0 ]; then
        p=1
    fi
    if [ "$rc" -ne 0 ] && [ "$f" -eq 0 ]; then
        f=1
    fi
    echo "$p $f $(awk -v a="$begin" -v b="$end" 'BEGIN { print b - a }')" >"$2"
}

# note_part NAME FILE: adds what run_one left to the table. A part that left nothing has failed.
note_part() {
    local name=$1 p f seconds result=ok
    read -r p f seconds <"$2" || { p=0 f=1 seconds=0; }
    rm -f "$2"
    passed=$((passed + p))
    failed=$((failed + f))
    [ "$f" -eq 0 ] || result=FAILED
    summary+=("$(printf '%-12s %8.1f s %6d passed %4d failed   %s' "$name" "$seconds" "$p" "$f" "$result")")
    if [ "$f" -eq 0 ] && declare -F part_over >/dev/null; then
        part_over "$name" "$seconds"
    fi
}

# Whoever interrupts the script means the parts in the background as well.
pids=()
stop_parts() {
    local pid
    for pid in ${pids[@]+"${pids[@]}"}; do
        kill -TERM -- "-$pid" 2>/dev/null || true
    done
}

# run_parts NAME...: in this order; neighbours that are all in $beside at once, with their words one after the other.
run_parts() {
    local name result group=() results i running
    while [ $# -gt 0 ]; do
        name=$1
        if [[ " ${beside-} " != *" $name "* ]]; then
            shift
            result=$(mktemp)
            echo
            echo "=== $name"
            run_one "$name" "$result"
            note_part "$name" "$result"
            continue
        fi
        group=() pids=()
        results=$(mktemp -d)
        while [ $# -gt 0 ] && [[ " ${beside-} " == *" $1 "* ]]; do
            while running=$(jobs -rp | wc -l) && [ "$running" -ge "$jobs" ]; do
                wait -n
            done
            echo
            echo "=== $1 (beside others; its words follow)"
            # In a process group of its own, so that it can be stopped with all that it started.
            set -m
            run_one "$1" "$results/$1" >"$results/$1.log" 2>&1 &
            set +m
            pids+=($!)
            group+=("$1")
            shift
        done
        for i in "${!group[@]}"; do
            wait "${pids[i]}"
            echo
            echo "=== ${group[i]}"
            cat "$results/${group[i]}.log"
            note_part "${group[i]}" "$results/${group[i]}"
        done
        pids=()
        rm -rf "$results"
    done
}

# Prints the table; its last line is "N passed, N failed". Fails when a part failed.
print_summary() {
    echo
    printf '%s\n' "${summary[@]}"
    list_parts | grep 'not here yet' || true
    awk -v s=$(($(date +%s) - begun)) 'BEGIN { printf "%.1f minutes in all\n", s / 60 }'
    echo "$passed passed, $failed failed"
    [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

# run_main DEFAULT ARG...: what ci/test and ci/nightly do with their arguments. DEFAULT is
# "all" or "none": what to run when no part is named.
run_main() {
    local default=$1 known part
    shift
    known=$(parts_of_table)
    case "${1-}" in
    --list)
        list_parts
        return 0
        ;;
    -*)
        echo "usage: $0 [--list | PART...]" >&2
        return 2
        ;;
    esac
    if [ $# -eq 0 ] && [ "$default" = none ]; then
        echo "usage: $0 [--list | PART...]; the parts are:" >&2
        list_parts >&2
        return 2
    fi
    for part in "$@"; do
        grep -qxF -- "$part" <<<"$known" || {
            echo "$0: unknown part '$part'; known are: ${known//$'\n'/ }" >&2
            return 2
        }
    done
    mkdir -p build
    if ! ci/install-deps; then
        echo "0 passed, 1 failed"
        return 1
    fi
    # shellcheck disable=SC2086
    [ $# -gt 0 ] || set -- $known
    begun=$(date +%s)
    trap stop_parts EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
    run_parts "$@"
    print_summary
}
