// SPDX-License-Identifier: Apache-2.0
//
// See providers.h.

#include "core/providers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/nic.h"

static unsigned load(void *arg, const struct lieni_provider *ops, const char *address)
{
    return lieni_nic_load(arg, ops, address);
}

struct found {
    const struct lieni_provider *ops;
    unsigned usable, later; // candidates that can be used, and those that may come up
    bool device;            // there is something that could have been used
    char why[400];          // why not, of the last that cannot; rather of one that may come up
};

static void judge(struct found *f, const struct lieni_verdict *v)
{
    f->usable += v->usable;
    f->later += v->c.state == LIEN_CANDIDATE_DOWN;
    f->device = f->device || v->c.state == LIEN_CANDIDATE_DOWN || v->c.nic[0];
    if (!v->usable && (v->c.state == LIEN_CANDIDATE_DOWN || f->later == 0))
        snprintf(f->why, sizeof f->why, "%s%s%s", v->c.nic, v->c.nic[0] ? ": " : "", v->why);
}

// All verdicts of the provider, or its refusal.
static struct found find(const struct lieni_select *s, const struct lieni_provider *ops,
                         const struct lieni_verdict *list, size_t n)
{
    struct found f = {.ops = ops};
    if (lieni_select_refusal(s, ops, f.why, sizeof f.why))
        return f;
    if (!lieni_select_looks(s, ops)) {
        f.usable = 1;
        return f;
    }
    for (size_t i = 0; i < n; i++) {
        if (list[i].ops == ops)
            judge(&f, &list[i]);
    }
    return f;
}

static bool open_one(lien_ctx *ctx, const struct lieni_provider *ops)
{
    const struct lieni_prov_args args = {.env = &ctx->platform.env,
                                         .report = lieni_log_report(ctx->log),
                                         .tls_cert = ctx->options.tls_cert,
                                         .tls_key = ctx->options.tls_key,
                                         .tls_ca = ctx->options.tls_ca,
                                         .tls_name = ctx->options.tls_name};
    struct lieni_prov_slot *slot = &ctx->provs[ctx->n_provs];
    slot->ops = ops;
    if (ops->open(&args, &slot->prov) != 0)
        return false; // it said why
    ctx->n_provs++;
    return true;
}

// One line: what is taken, and what would have come before it. A warning where a device is there that cannot be used.
static void say(lien_ctx *ctx, const struct lieni_verdict *list, size_t n)
{
    const struct lieni_provider *first = ctx->provs[0].ops;
    char others[700] = "";
    bool device = false;
    for (const struct lieni_provider *const *p = ctx->platform.providers; *p && *p != first; p++) {
        struct found f = find(&ctx->select, *p, list, n);
        size_t len = strlen(others);
        device = device || f.device;
        snprintf(others + len, sizeof others - len, "%s%s: %s", len ? "; " : "; not ",
                 (*p)->traits->name, f.why);
    }
    lieni_log_say(ctx->log, device ? LIEN_LOG_WARN : LIEN_LOG_INFO, NULL, 0,
                  "provider %s (path %s)%s", first->traits->name,
                  lien_path_name(first->traits->path), others);
}

int lieni_providers_open(lien_ctx *ctx)
{
    struct lieni_verdict *list = NULL;
    size_t n = 0;
    unsigned usable = 0;
    ctx->select.load = load;
    ctx->select.arg = ctx;
    bool looks = ctx->options.log_level >= LIEN_LOG_INFO; // for the line
    for (const struct lieni_provider *const *p = ctx->platform.providers; *p; p++)
        looks = looks || lieni_select_looks(&ctx->select, *p);
    if (looks && lieni_select_all(&ctx->select, NULL, NULL, &list, &n) != 0)
        return LIEN_ENOMEM;
    const struct lieni_provider *const *p = ctx->platform.providers;
    for (; *p && ctx->n_provs < LIENI_PROVS_MAX; p++) {
        struct found f = find(&ctx->select, *p, list, n);
        if ((f.usable || f.later) && open_one(ctx, *p))
            usable += f.usable;
    }
    if (usable > 0 && looks)
        say(ctx, list, n);
    free(list);
    return usable > 0 ? 0 : lieni_select_complain(&ctx->select, NULL, NULL, ctx->log);
}

const struct lieni_prov_slot *lieni_providers_named(const lien_ctx *ctx, const char *name)
{
    for (unsigned i = 0; i < ctx->n_provs; i++) {
        if (strcmp(ctx->provs[i].ops->traits->name, name) == 0)
            return &ctx->provs[i];
    }
    return NULL;
}

void lieni_providers_look(lien_ctx *ctx)
{
    const struct lieni_provider *opened[LIENI_PROVS_MAX + 1];
    for (unsigned i = 0; i < ctx->n_provs; i++)
        opened[i] = ctx->provs[i].ops;
    opened[ctx->n_provs] = NULL;
    free(ctx->seen.list);
    lieni_select_look(&ctx->select, opened, &ctx->seen);
}

// A device that was looked at has told its depth; others are asked for it, which is cheap.
static bool local_end(const lien_ctx *ctx, const struct lieni_prov_slot *slot,
                      const struct lieni_target *target, struct lieni_selected *out)
{
    if (!lieni_select_local(&ctx->select, &ctx->seen, slot->ops, target, out))
        return false;
    if (!lieni_select_looks(&ctx->select, slot->ops))
        out->read_depth = slot->ops->read_depth(slot->prov, out->address);
    return true;
}

int lieni_providers_local(lien_ctx *ctx, const struct lieni_prov_slot *slot,
                          const struct lieni_target *target, struct lieni_selected *out)
{
    if (local_end(ctx, slot, target, out))
        return 0;
    if (ctx->seen.status != 0)
        return ctx->seen.status;
    lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_ENODEV, "no candidate of %s leads to %s",
                  slot->ops->traits->name, target->address);
    return LIEN_ENODEV;
}

int lieni_providers_offer(lien_ctx *ctx, const struct lieni_target *target,
                          struct lieni_offer *offer)
{
    for (unsigned i = 0; i < ctx->n_provs && i < LIENI_PROVIDERS_MAX; i++) {
        struct lieni_selected selected;
        const struct lieni_prov_slot *slot = &ctx->provs[i];
        if (!local_end(ctx, slot, target, &selected))
            continue;
        if (offer->read_depth == 0)
            offer->read_depth = selected.read_depth;
        strncpy(offer->providers[offer->n_providers++], slot->ops->traits->name,
                sizeof(offer->providers[0]) - 1);
    }
    if (offer->n_providers > 0)
        return 0;
    if (ctx->seen.status != 0)
        return ctx->seen.status;
    lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_ENOPROVIDER,
                  "no candidate of any provider leads to %s", target->address);
    return lieni_select_complain(&ctx->select, &ctx->seen, target, ctx->log);
}

static void list_offer(const struct lieni_offer *offer, char *text, size_t size)
{
    size_t len = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < offer->n_providers && len < size; i++)
        len += (size_t)snprintf(text + len, size - len, "%s%s", i ? "," : "", offer->providers[i]);
}

// Whether this side could have had RDMA, and the peer could not.
static bool fell_back(const lien_ctx *ctx, const struct lieni_handshake *hs)
{
    const struct lieni_prov_slot *would = lieni_providers_named(ctx, hs->local.providers[0]);
    const struct lieni_prov_slot *taken = lieni_providers_named(ctx, hs->provider);
    return would && taken && would->ops->traits->path == LIEN_PATH_RDMA &&
           taken->ops->traits->path != LIEN_PATH_RDMA;
}

void lieni_providers_agreed(lien_ctx *ctx, const struct lieni_handshake *hs,
                            const struct lieni_log_at *at)
{
    char here[256], there[256];
    if (hs->local.n_providers < 2 && hs->peer.n_providers < 2)
        return;
    list_offer(&hs->local, here, sizeof(here));
    list_offer(&hs->peer, there, sizeof(there));
    lieni_log_say(ctx->log, fell_back(ctx, hs) ? LIEN_LOG_WARN : LIEN_LOG_INFO, at, 0,
                  "goes over %s: this side offers %s, the peer %s; the first of the client's that "
                  "the server has",
                  hs->provider, here, there);
}
