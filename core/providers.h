// SPDX-License-Identifier: Apache-2.0
//
// The providers that a ctx has open, in order of preference, and what its connections take of them by the rule of select.h. Under the state lock, in progress context, but for opening and looking.

#ifndef LIENI_PROVIDERS_H
#define LIENI_PROVIDERS_H

#include "core/ctx.h"
#include "core/handshake.h"

// Opens those that can be used, and says in one line which, and what comes before them and why it cannot. LIEN_ENOPROVIDER after lieni_select_complain(). A port that is down now, beside others that
// are up, keeps its provider: it may come up.
int lieni_providers_open(lien_ctx *ctx);
// Asks the opened providers again for the candidates that the connections which now begin choose from. In progress context, without the state lock: devices may take a moment to answer.
void lieni_providers_look(lien_ctx *ctx);
const struct lieni_prov_slot *lieni_providers_named(const lien_ctx *ctx, const char *name);
// The names to offer to this peer: of those that reach it, by what was seen last; and the READ depth of the first of their devices that has one. LIEN_ENOPROVIDER after a log line for each candidate.
int lieni_providers_offer(lien_ctx *ctx, const struct lieni_target *target,
                          struct lieni_offer *offer);
// The local end of a connection by this provider, with what its device serves; of what was seen last. LIEN_ENODEV after a log line: none leads there.
int lieni_providers_local(lien_ctx *ctx, const struct lieni_prov_slot *slot,
                          const struct lieni_target *target, struct lieni_selected *out);
// Says which way a connection goes, where another could have been expected: one side offered more than one. A warning where we had RDMA to offer and it is none.
void lieni_providers_agreed(lien_ctx *ctx, const struct lieni_handshake *hs,
                            const struct lieni_log_at *at);

#endif
