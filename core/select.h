// SPDX-License-Identifier: Apache-2.0
//
// Selection (design.md 5): which providers a ctx opens, and which local address a connection takes. Every candidate of every provider gets a verdict with its reason; the same verdicts
// choose, make the error of a provider that is not there, and are what lien_candidates_each() tells.
//
// The rule. A provider is ruled out by option `provider`, FI_PROVIDER, `require_zero_copy`, or by being one that is never chosen by default. Of its candidates those count that are up and that options
// `nic`, `subnet` and `address` allow. Without these three options a provider over the kernel's sockets goes where the bootstrap went, since the kernel has just shown that it works; one over RDMA takes the
// candidate whose address the bootstrap used, or one in the peer's network. With them, one in the peer's network comes before others. Of equals the least loaded, then the first.
//
// Devices are asked without the state lock, by lieni_select_look(); a connection chooses among what that saw. The options are constant once opened.

#ifndef LIENI_SELECT_H
#define LIENI_SELECT_H

#include "core/options.h"

struct lieni_select {
    const struct lieni_options *options;
    const struct lieni_platform *platform;
    const char *fi;      // FI_PROVIDER, or NULL
    char addresses[512]; // option address, resolved; "" where it names an interface
    // Endpoints on a local address of a provider. NULL: none anywhere.
    unsigned (*load)(void *arg, const struct lieni_provider *ops, const char *address);
    void *arg;
};

// What a connection goes by.
struct lieni_selected {
    char address[96]; // numeric, local
    char nic[64];     // "" if not known
    bool soft;
    uint32_t read_depth; // as the candidate said
};

// A peer as selection sees it.
struct lieni_target {
    const char *address; // numeric, of the peer: where the endpoint will connect to or from
    const char *local;   // numeric, our own end of the bootstrap
    bool local_reaches;  // the bootstrap went to `address` itself
};

// One candidate with its verdict; `c.nic` and `c.address` "" for a provider without any.
struct lieni_verdict {
    const struct lieni_provider *ops; // NULL: not in this build
    const char *provider;
    struct lieni_candidate c;
    bool usable;
    bool chosen;
    char why[400];
};

// The candidates of one moment, of those providers that have to be looked at.
struct lieni_seen {
    struct lieni_verdict *list; // malloc'd, in order of preference; none is chosen
    size_t n;
    int status; // LIEN_ENOMEM: it could not be kept, and the list is empty
};

// Checks options that only mean something here (networks, names) and resolves option `address`. LIEN_EOPTION after a log line. Keeps the pointers. May block: asks the resolver.
int lieni_select_open(struct lieni_select *s, const struct lieni_options *options,
                      const struct lieni_platform *platform, struct lieni_log *log);
// NULL, or why options or FI_PROVIDER rule the provider out, in `why`.
const char *lieni_select_refusal(const struct lieni_select *s, const struct lieni_provider *ops,
                                 char *why, size_t size);
// Whether the candidates of a provider that is not ruled out have to be asked for: else it goes wherever the bootstrap goes.
bool lieni_select_looks(const struct lieni_select *s, const struct lieni_provider *ops);
// Asks those of `providers` (ended by NULL) that have to be looked at for their candidates, into *seen, whose list the caller frees. May block: asks devices and the kernel.
void lieni_select_look(const struct lieni_select *s, const struct lieni_provider *const *providers,
                       struct lieni_seen *seen);
// Verdicts on all, in order of preference, one malloc'd array into *list; with `target`, which one is chosen. Of those in `seen`, or (NULL) asks, and may block. LIEN_ENOMEM.
int lieni_select_all(const struct lieni_select *s, const struct lieni_seen *seen,
                     const struct lieni_target *target, struct lieni_verdict **list, size_t *n);
// The local end for one provider, of what was seen. False: none of its candidates reached the target then.
bool lieni_select_local(const struct lieni_select *s, const struct lieni_seen *seen,
                        const struct lieni_provider *ops, const struct lieni_target *target,
                        struct lieni_selected *out);
// A log line for each candidate, with `target` (or NULL) also of those that do not lead there, and one that says what was asked for; `seen` as above. Returns LIEN_ENOPROVIDER.
int lieni_select_complain(const struct lieni_select *s, const struct lieni_seen *seen,
                          const struct lieni_target *target, struct lieni_log *log);

#endif
