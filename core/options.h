// SPDX-License-Identifier: Apache-2.0
//
// The options of a ctx: one table (LIENI_OPTIONS) makes struct, defaults, parser and manual
// (test_options_man checks docs/man/lien_options.5.scd against it). A value comes, in rising order,
// from the default, the file that option `config` names, the environment (LIEN_ and the key in
// capitals) and the settings of lien_ctx_opts; where from is kept. Read only once loaded.

#ifndef LIENI_OPTIONS_H
#define LIENI_OPTIONS_H

#include "core/log.h"

// X(key, type, default, min, max, unit, text). Types: UINT (uint64_t; where the unit is bytes, powers
// of 1024 as suffixes K, M, G), FLAG (bool: 0 1 no yes off on), TEXT (min to max printable bytes, ""
// is unset), LEVEL (error warn info debug).
#define LIENI_OPTIONS(X)                                                                           \
    X(config, TEXT, "", 0, 255, "path",                                                            \
      "File of options, a line \"key = value\" each; unset: none")                                 \
    X(provider, TEXT, "", 0, 63, "name",                                                           \
      "Provider to use; unset: FI_PROVIDER's, else the best that works")                           \
    X(address, TEXT, "", 0, 95, "address",                                                         \
      "Local address of fabric connections: a numeric one, a name of this machine, or an "         \
      "interface; unset: the best that works")                                                     \
    X(nic, TEXT, "", 0, 255, "names",                                                              \
      "Interfaces or devices that fabric connections may use, by comma, each with \"/port\" if "   \
      "need be; unset: any")                                                                       \
    X(subnet, TEXT, "", 0, 255, "networks",                                                        \
      "Networks that local addresses of fabric connections must be in, by comma, such as "         \
      "10.1.0.0/16,fd00::/8; unset: any")                                                          \
    X(require_zero_copy, FLAG, "0", 0, 0, "",                                                      \
      "Take only providers in which a device moves the bytes (path rdma)")                         \
    X(log_level, LEVEL, "warn", 0, 0, "level",                                                     \
      "Least severe log lines that pass: error, warn, info, debug")                                \
    X(dispatch_threads, UINT, "1", 1, 64, "threads",                                               \
      "Threads that run callbacks (not in app-driven contexts)")                                   \
    X(connect_ms, UINT, "5000", 10, 3600000, "ms",                                                 \
      "From the start of a connection to its being open")                                          \
    X(heartbeat_ms, UINT, "1000", 0, 3600000, "ms",                                                \
      "Silence after which a peer is asked for a sign of life; idle connections: twice that, at "  \
      "most half of dead_ms, and a quarter later by the side that connected; 0: never asked, nor " \
      "missed")                                                                                    \
    X(dead_ms, UINT, "5000", 20, 3600000, "ms", "A peer not heard of for so long is lost")         \
    X(read_watchdog_ms, UINT, "10000", 20, 3600000, "ms",                                          \
      "READs outstanding and none completing for so long end the connection")                      \
    X(drain_ms, UINT, "200", 1, 60000, "ms",                                                       \
      "Most time given to outstanding operations to complete in a teardown")                       \
    X(linger_ms, UINT, "1000", 0, 60000, "ms",                                                     \
      "Most time a closing connection waits for its queued messages and the peer's farewell")      \
    X(release_ms, UINT, "10000", 20, 3600000, "ms",                                                \
      "A peer that owes the release of a revoked grant, or of the read space of a call that "      \
      "ended, for so long loses the connection")                                                   \
    X(reads_per_nic, UINT, "32", 1, 65536, "READs",                                                \
      "READs in flight on one NIC, shared fairly by its connections")                              \
    X(read_piece, UINT, "1M", 4096, 1073741824, "bytes",                                           \
      "Most bytes of one READ; the provider's own limit holds too (R19)")                          \
    X(read_conn_bytes, UINT, "4M", 4096, 1073741824, "bytes",                                      \
      "Most READ bytes outstanding on one connection; the provider's own limit holds too (R19)")   \
    X(frame_max, UINT, "8192", 4096, 65535, "bytes", "Size of a receive: a frame and its header")  \
    X(message_credits, UINT, "32", 1, 4096, "messages",                                            \
      "Messages a peer may have sent that are not freed yet")                                      \
    X(control_credits, UINT, "32", 8, 4096, "frames",                                              \
      "Control frames a peer may have sent that are not consumed yet")                             \
    X(call_credits, UINT, "32", 0, 4096, "calls",                                                  \
      "Open calls of one side of a connection; the smaller value of both peers holds; 0: none")    \
    X(call_ms, UINT, "30000", 1, 3600000, "ms", "Deadline of a call that names none")              \
    X(requests_max, UINT, "4096", 1, 1048576, "requests",                                          \
      "Requests that handlers may have at once; more calls are answered with LIEN_EOVERLOAD")      \
    X(backoff_min_ms, UINT, "100", 1, 3600000, "ms",                                               \
      "First bound of a channel's wait between two rounds of attempts")                            \
    X(backoff_max_ms, UINT, "10000", 1, 3600000, "ms",                                             \
      "Last bound of a channel's wait, which doubles up to it")                                    \
    X(channel_queue, UINT, "256", 1, 1048576, "calls",                                             \
      "Calls that may wait in a channel for a connection or credit")                               \
    X(message_max, UINT, "4G", 0, 4294967296, "bytes", "Largest body of a message that is taken")  \
    X(receive_pool, UINT, "4G", 65536, 1099511627776, "bytes",                                     \
      "Limit of the ctx's own pool for received bodies")                                           \
    X(guard, FLAG, "0", 0, 0, "",                                                                  \
      "Guard mode in every pool that does not say otherwise: see "                                 \
      "lien_guard(7)")                                                                             \
    X(checksum, TEXT, "asked", 0, 15, "rule",                                                      \
      "Checksums of what is granted: asked (where LIEN_CHECKSUM says so), always, or require "     \
      "(always, and what a peer grants without is refused)")                                       \
    X(trace, UINT, "0", 0, 65536, "events",                                                        \
      "Last events of each connection that are kept for lien_conn_trace(); 0: none")               \
    X(trace_bytes, UINT, "0", 0, 4096, "bytes",                                                    \
      "First bytes of each frame that a trace keeps as they are, users' bytes and keys among "     \
      "them; 0: only what holds neither")                                                          \
    X(trace_dir, TEXT, "", 0, 255, "directory",                                                    \
      "Where the trace of a connection that ends with an error is written; unset: nowhere")        \
    X(trace_files, UINT, "100", 1, 1000000, "files", "Traces that a ctx writes into trace_dir")    \
    X(grants_conn, UINT, "4096", 1, 1048576, "grants",                                             \
      "Live grants on one connection; the smaller of both peers' holds for both")                  \
    X(held_conn_bytes, UINT, "8G", 4096, 1099511627776, "bytes",                                   \
      "Bytes of live held grants on one connection")                                               \
    X(held_total_bytes, UINT, "64G", 4096, 17592186044416, "bytes",                                \
      "Bytes of live held grants of the ctx")                                                      \
    X(quarantine_peer_bytes, UINT, "256M", 0, 1099511627776, "bytes",                              \
      "Most bytes of one peer in quarantine; where the end of a connection proves nothing, what "  \
      "is lent over it counts before: READs, held grants and frames")                              \
    X(quarantine_total_bytes, UINT, "1G", 0, 1099511627776, "bytes",                               \
      "The same of all peers; above, such connections are refused, too")                           \
    X(half_open_max, UINT, "1024", 1, 65536, "connections",                                        \
      "Accepted connections that may be on their way to open at once")                             \
    X(fabric_ports, TEXT, "", 0, 15, "lo-hi", "Ports that fabric listeners may use; unset: any")   \
    X(advertise, TEXT, "", 0, 95, "host",                                                          \
      "Address told to peers for the fabric connection; unset: that of the accepted bootstrap "    \
      "socket")                                                                                    \
    X(psk_file, TEXT, "", 0, 255, "file",                                                          \
      "Pre-shared keys, one a line in hexadecimal: the first is proved to peers, each is taken "   \
      "from them; no file that others can read or write, or that belongs to another user than "    \
      "root and the process's own; unset: peers are not authenticated")                            \
    X(tls_cert, TEXT, "", 0, 255, "file",                                                          \
      "Certificate chain of this side (PEM), which a server needs on providers with TLS")          \
    X(tls_key, TEXT, "", 0, 255, "file", "Private key (PEM) of tls_cert")                          \
    X(tls_ca, TEXT, "", 0, 255, "file",                                                            \
      "Certificates (PEM) that vouch for servers on providers with TLS; unset: the system's")      \
    X(tls_name, TEXT, "", 0, 253, "name",                                                          \
      "Name or address that a server's certificate must have; unset: the host that was dialled")

// One number for each option.
enum lieni_option {
#define LIENI_NUMBER(key, type, def, min, max, unit, text) LIENI_OPTION_##key,
    LIENI_OPTIONS(LIENI_NUMBER)
#undef LIENI_NUMBER
    LIENI_N_OPTIONS
};

// Where a value came from; `line` in the file.
struct lieni_origin {
    lien_origin from;
    unsigned line;
};

struct lieni_options {
#define LIENI_FIELD_UINT(key)                             uint64_t key;
#define LIENI_FIELD_FLAG(key)                             bool key;
#define LIENI_FIELD_TEXT(key)                             char key[256];
#define LIENI_FIELD_LEVEL(key)                            lien_level key;
#define LIENI_FIELD(key, type, def, min, max, unit, text) LIENI_FIELD_##type(key)
    LIENI_OPTIONS(LIENI_FIELD)
#undef LIENI_FIELD
    uint16_t fabric_port_lo, fabric_port_hi; // from fabric_ports
    struct lieni_origin origins[LIENI_N_OPTIONS];
    bool checksum_always, checksum_require; // from checksum
};

// Environment variables under these prefixes belong to shims and tools, never to an option of core.
#define LIENI_RESERVED_PREFIXES(X)                                                                 \
    X("LIEN_GRPC")                                                                                 \
    X("LIEN_TIRPC")                                                                                \
    X("LIEN_PROTOBUF_C")                                                                           \
    X("LIEN_TEST")                                                                                 \
    X("LIEN_BLOB")                                                                                 \
    X("LIEN_PERF")                                                                                 \
    X("LIEN_INFO")

// Fills all of `options`. Of two settings, or lines, of one key the later holds; both must be well formed, and so
// must what another source overrides. Option `config` itself comes from a setting or LIEN_CONFIG, not
// from the file. LIEN_EOPTION after a log line for each mistake, which names
// the key or variable, its value and the limit, or for an unknown one the nearest known. Unknown LIEN_
// variables are mistakes too, unless reserved. Keys are lower case, variables capitals; the words and
// suffixes of values take either. A `provider` that FI_PROVIDER excludes is a mistake (design.md 5).
// `settings` and `environ_vars` end in NULL; settings NULL: none; environ_vars NULL: the process's.
// Reads no other state but the file, and keeps no pointer.
int lieni_options_load(struct lieni_options *options, const char *const *settings,
                       char *const *environ_vars, struct lieni_log *log);
// Calls `fn` for each option in the table's order, with value and origin.
void lieni_options_tell(const struct lieni_options *options, lien_option_fn *fn, void *arg);
// FI_PROVIDER's say about `name` (lists "a,b" and "^a,b", in any case of letters, as libfabric has
// them): allowed or not. NULL or empty allows all, and so it does for providers that are not
// libfabric's.
bool lieni_fi_provider_allows(const char *fi_provider, const char *name);
// Whether it asks for `name`: a list, not of exceptions, that has it.
bool lieni_fi_provider_names(const char *fi_provider, const char *name);

#endif
