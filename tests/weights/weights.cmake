# SPDX-License-Identifier: Apache-2.0
#
# Read by ctest itself. COST: about the seconds a test takes alone; the longest start first, so that none of them is left alone at the end. PROCESSORS: ci/lib.sh runs twice as many tests
# at once as there are cores, so one stands for half a core; a test that keeps a core busy takes two. One that takes more than two is put off until few others are left, so none does. A test that is not listed takes a few seconds and mostly
# waits. Wrong numbers cost time, nothing else; `ctest --show-only=json-v1` tells what became of them.

function(weigh cost processors)
    set_tests_properties(${ARGN} PROPERTIES COST ${cost} PROCESSORS ${processors})
endfunction()

weigh(70 2 lien_sim)
weigh(55 2 blob)
weigh(9 2 test_events lien_sim_shrinks)
weigh(50 2 chaos)
weigh(35 1 hostile_calls)
weigh(30 2 conformance_tcp_giant conformance_tcp-thread_giant)
weigh(30 2 field_report_10_cancelled_calls conformance_tcp_callend conformance_tcp-thread_callend conformance_sim_giant)
weigh(
    20 2
    consumer conformance_sim_callend conformance_sim_end conformance_sim_space conformance_tcp_end conformance_tcp-thread_end conformance_tcp_space conformance_tcp-thread_space)
weigh(30 2 conformance_stream_callend conformance_stream-thread_callend)
weigh(20 2 conformance_stream_end conformance_stream-thread_end conformance_stream_space stream_blob)
foreach(provider ws wss h2c h2)
    weigh(20 2 conformance_${provider}_end conformance_${provider}_space)
    weigh(10 2 conformance_${provider}_read conformance_${provider}_layout)
endforeach()
weigh(16 2 test_verify test_pool test_pool_guarded lien_sim_guarded check_layers)
weigh(14 1 test_idle test_fault_slow test_fault_stopped test_fault_boot test_fault_frozen test_fault_kill test_handshake test_wire test_sim_provider trace hostile_frames test_reuse)
weigh(12 2 perf test_leftover test_fault_cancel test_guard)
foreach(group read layout message grant call reuse)
    weigh(10 2 conformance_tcp_${group} conformance_tcp-thread_${group})
    weigh(10 1 conformance_sim_${group})
    weigh(10 2 conformance_stream_${group})
endforeach()
weigh(8 2 lien_info)
weigh(10 1 test_call_tcp test_tcp_peers test_tcp_idle test_field_sim test_restart test_space test_call_keyed stress_core test_call test_channel_end test_access test_fault_container)
