# SPDX-License-Identifier: Apache-2.0
#
# lieni_flags: warnings, sanitizers and coverage, for Lien's own targets only. It is linked
# PRIVATE everywhere, so no user of Lien ever inherits a flag from it.

add_library(lieni_flags INTERFACE)
target_compile_definitions(lieni_flags INTERFACE _GNU_SOURCE)
target_compile_options(
    lieni_flags
    INTERFACE -Wall
              -Wextra
              -Wpedantic
              -Wshadow
              -Wconversion
              -Wsign-conversion
              -Wstrict-prototypes
              -Wmissing-prototypes
              -Wcast-qual
              -Wswitch-enum)

foreach(sanitizer IN LISTS LIEN_SANITIZE)
    if(NOT sanitizer MATCHES "^(address|undefined|thread)$")
        message(FATAL_ERROR "LIEN_SANITIZE: '${sanitizer}' is none of address, undefined, thread")
    endif()
endforeach()
if("thread" IN_LIST LIEN_SANITIZE AND "address" IN_LIST LIEN_SANITIZE)
    message(FATAL_ERROR "LIEN_SANITIZE: thread and address exclude each other")
endif()

if(LIEN_SANITIZE)
    list(JOIN LIEN_SANITIZE "," lieni_sanitize)
    target_compile_options(
        lieni_flags INTERFACE -fsanitize=${lieni_sanitize} -fno-sanitize-recover=all
                              -fno-omit-frame-pointer)
    target_link_options(lieni_flags INTERFACE -fsanitize=${lieni_sanitize}
                        -fno-sanitize-recover=all)
endif()

if(LIEN_FUZZ AND CMAKE_C_COMPILER_ID STREQUAL "Clang")
    # Edges are counted everywhere; the fuzzer's main is linked into the targets alone.
    target_compile_options(lieni_flags INTERFACE -fsanitize=fuzzer-no-link)
    target_link_options(lieni_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(LIEN_COVERAGE)
    # Counted atomically: threads would lose counts and make them negative, which gcovr refuses.
    target_compile_options(lieni_flags INTERFACE --coverage -fprofile-update=atomic)
    target_link_options(lieni_flags INTERFACE --coverage)
endif()
