# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# What ci/test and ci/nightly share: building a preset, running its tests with every silent
# failure made loud, running parts and printing the table. Sourced, never run.
#
# A part is a function part_<name>. It fails by a nonzero status. It counts as one test unless
# it calls count. The sourcing script sets `table`, one row a part:
# name|file that must exist|what it shows

: "${table:?ci/lib.sh is sourced by ci/test and ci/nightly}"

jobs=${CI_JOBS:-$(nproc)}

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

build() {
    cmake --preset "$1" >"build/$1.configure.log" 2>&1 || {
        cat "build/$1.configure.log"
        return 1
    }
    cmake --build --preset "$1" -j "$jobs"
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
# sanitizer report each count as one more failure.
run_ctest() {
    local preset=$1 dir=$PWD/build/$1 rc=0 total failed skipped
    shift
    fresh_dir "$dir/reports"
    fresh_dir "$dir/sanitizer"
    rm -f "$dir/junit.xml"
    (
        sanitizer_env "$dir/sanitizer"
        ctest --test-dir "$dir" --output-on-failure --no-tests=error -j "$jobs" --repeat "${repeat:-until-pass:2}" \
            --output-junit "$dir/junit.xml" "$@"
    ) || rc=1
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

run_part() {
    local name=$1 begin end rc p f result
    count_file=$(mktemp)
    echo
    echo "=== $name"
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
    passed=$((passed + p))
    failed=$((failed + f))
    result=ok
    [ "$f" -eq 0 ] || result=FAILED
    summary+=("$(printf '%-12s %8.1f s %6d passed %4d failed   %s' "$name" \
        "$(awk -v a="$begin" -v b="$end" 'BEGIN { print b - a }')" "$p" "$f" "$result")")
}

# Prints the table; its last line is "N passed, N failed". Fails when a part failed.
print_summary() {
    echo
    printf '%s\n' "${summary[@]}"
    list_parts | grep 'not here yet' || true
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
    for part in "$@"; do
        run_part "$part"
    done
    print_summary
}
