// SPDX-License-Identifier: Apache-2.0
//
// Lien, diagnosis: what the options are and where each value came from; which ways this machine has to reach a peer, which of them would be taken, and why the others would not. Needs no ctx:
// lien-info(1) prints what these functions tell. Included by lien/lien.h, whose rules hold here too.
// Since 0.1, all of it.

#ifndef LIEN_INFO_H
#define LIEN_INFO_H

#include <lien/lien.h>

#ifdef __cplusplus
extern "C" {
#endif

// Where the value of an option came from, in rising order of weight.
typedef enum lien_origin {
    LIEN_ORIGIN_DEFAULT = 0,
    LIEN_ORIGIN_FILE = 1,        // of option `config`
    LIEN_ORIGIN_ENVIRONMENT = 2, // LIEN_ and the key in capitals
    LIEN_ORIGIN_SETTING = 3      // of lien_ctx_opts
} lien_origin;

// One option. Strings live only during the call.
typedef struct lien_option_info {
    size_t size;
    const char *key;      // "connect_ms"
    const char *variable; // "LIEN_CONNECT_MS"
    const char *type;     // "number", "flag", "text", "level"
    const char *unit;
    const char *text;    // what it is, a sentence without its stop
    const char *initial; // the default, as it would be written
    uint64_t min, max;   // of a number; bytes of a text
    const char *value;   // now
    lien_origin origin;
    const char *file; // origin FILE: its path, else NULL
    unsigned line;    // and line, else 0
} lien_option_info;

typedef void lien_option_fn(const lien_option_info *option, void *arg);

// Calls `fn` for each option in the order of lien_options(5), with the value that lien_ctx_open() with the same `opts` (NULL: the defaults) would give it; flags are not looked at. LIEN_EOPTION: a
// mistake somewhere, as there; the log says each, and `fn` does not run. Reads the file that option `config` names; blocks no longer than that.
LIEN_API int lien_options_each(const lien_ctx_opts *opts, lien_option_fn *fn, void *arg);

typedef enum lien_candidate_state {
    LIEN_CANDIDATE_UP = 1,     // works, as far as can be seen
    LIEN_CANDIDATE_DOWN = 2,   // a port without link; it may come up
    LIEN_CANDIDATE_REFUSED = 3 // the provider cannot be used so: see `why`
} lien_candidate_state;

// One way to reach peers: a provider over a device's port, or an interface, from one local address; or a provider that has none (nic and address ""). Strings live only during the call.
typedef struct lien_candidate_info {
    size_t size;
    const char *provider;
    const char *nic;       // "rxe0/1", "eth0"
    const char *interface; // of the kernel, "eth0"
    const char *address;   // numeric
    unsigned prefix;       // bits of its network
    lien_candidate_state state;
    bool usable;     // allowed by options and FI_PROVIDER, and up
    bool chosen;     // what a connection would take now
    const char *why; // why it is not usable, or not chosen; "" otherwise
    lien_path path;
    bool soft;              // path rdma, by a device that is software
    bool ep_end_proves;     // evidence class, design.md 5 (b)
    bool domain_end_proves; // (c)
    bool only_if_asked;     // never chosen by default
    uint32_t read_piece_max;
    uint32_t read_bytes_max;
    uint32_t reads_max;
    uint32_t posts_max;
} lien_candidate_info;

typedef void lien_candidate_fn(const lien_candidate_info *candidate, void *arg);

// Calls `fn` for each candidate of each provider, in order of preference, and says which one a connection to `peer` would take: a host, "host:port" or "[v6]:port"; NULL: none is chosen. `opts` as for
// lien_options_each(). LIEN_ENOPROVIDER: none; all have been told. LIEN_EOPTION: as for lien_ctx_open(), none was told. LIEN_EADDR: `peer` cannot be resolved or has no route; the log says why, none was
// told. Blocks: resolves names.
LIEN_API int lien_candidates_each(const lien_ctx_opts *opts, const char *peer,
                                  lien_candidate_fn *fn, void *arg);

#ifdef __cplusplus
}
#endif

#endif
