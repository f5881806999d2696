// SPDX-License-Identifier: Apache-2.0
//
// The counters of a ctx as OpenMetrics text. One table (LIENI_METRICS) names, types and explains each
// field of lien_ctx_stats; a field that is not in it, or in the wrong place, does not compile.

#ifndef LIENI_METRICS_H
#define LIENI_METRICS_H

#include <lien/lien.h>

// X(field, KIND, name, unit, help), in the order of the struct. A COUNTER's samples end in _total, its
// name does not; a GAUGE is a level. Where there is a unit the name ends in it.
// clang-format off
#define LIENI_METRICS(X)                                                                           \
    X(conns_open, GAUGE, "lien_conns_open", "", "Connections that are open")                       \
    X(conns_total, COUNTER, "lien_conns", "", "Connections opened")                                \
    X(conns_lost, COUNTER, "lien_conns_lost", "", "Connections that ended by themselves")          \
    X(reads_started, COUNTER, "lien_reads_started", "", "Reads started")                           \
    X(reads_done, COUNTER, "lien_reads_done", "", "Reads done with success")                       \
    X(reads_failed, COUNTER, "lien_reads_failed", "", "Reads that failed")                         \
    X(read_pieces_posted, COUNTER, "lien_read_pieces_posted", "",                                  \
      "RMA READs given to the provider")                                                           \
    X(read_pieces_done, COUNTER, "lien_read_pieces_done", "",                                      \
      "RMA READs whose completion was taken")                                                      \
    X(read_bytes, COUNTER, "lien_read_bytes", "bytes", "Bytes read from peers")                    \
    X(messages_sent, COUNTER, "lien_messages_sent", "", "Messages sent")                           \
    X(messages_received, COUNTER, "lien_messages_received", "", "Messages received")               \
    X(payload_bytes_copied, COUNTER, "lien_payload_copied_bytes", "bytes",                         \
      "Payload bytes copied by Lien's core on the CPU")                                                   \
    X(grants_live, GAUGE, "lien_grants_live", "", "Grants that hold")                              \
    X(grants_bytes, GAUGE, "lien_grants_bytes", "bytes", "Bytes of grants that hold")              \
    X(quarantined_bytes, GAUGE, "lien_quarantined_bytes", "bytes", "Bytes now in quarantine")      \
    X(quarantined_total, COUNTER, "lien_quarantined_ever_bytes", "bytes", "Bytes that quarantine ever took in") \
    X(evidence_unknown, COUNTER, "lien_evidence_unknown", "",                                      \
      "Completions that matched nothing, were late or came twice")                                 \
    X(protocol_errors, COUNTER, "lien_protocol_errors", "", "Breaches of protocol by peers")       \
    X(pool_bytes, GAUGE, "lien_pool_bytes", "bytes", "Bytes in pool buffers handed out")           \
    X(log_dropped, COUNTER, "lien_log_dropped", "", "Log lines dropped by a full ring")            \
    X(guard_skipped, COUNTER, "lien_guard_skipped", "",                                            \
      "Lends in guarded pools that went on unprotected")                                           \
    X(channel_attempts, COUNTER, "lien_channel_attempts", "", "Connections that channels began")   \
    X(calls_resent, COUNTER, "lien_calls_resent", "",                                              \
      "Calls that channels sent again, having never begun")                                        \
    X(checksums_wrong, COUNTER, "lien_checksums_wrong", "",                                        \
      "Reads whose bytes were not those granted")                                                  \
    X(exposed_bytes, GAUGE, "lien_exposed_bytes", "bytes",                                         \
      "Bytes of pool memory whose keys peers still know")
// clang-format on

// The fields that lie within stats->size, as OpenMetrics text ended by "# EOF\n" and NUL; freed by the
// caller with free(). LIEN_ENOMEM. Any thread; blocks on nothing.
int lieni_metrics_text(const lien_ctx_stats *stats, char **text);

#endif
