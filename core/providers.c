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
    char why[400];          // why not, of the last that cannot
};

static void judge(struct found *f, const struct lieni_verdict *v)
{
    f->usable += v->usable;
    f->later += v->c.state == LIEN_CANDIDATE_DOWN;
    f->device = f->device || v->c.state == LIEN_CANDIDATE_DOWN || v->c.nic[0];
    if (!v->usable)
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
                                         .report = lieni_log_report(ctx->log)};
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
    const char *first = ctx->provs[0].ops->traits->name;
    char others[700] = "";
    bool device = false;
    for (size_t i = 0; i < n && strcmp(list[i].provider, first) != 0; i++) {
        const struct lieni_verdict *v = &list[i];
        size_t len = strlen(others);
        device = device || v->c.nic[0];
        snprintf(others + len, sizeof others - len, "%s%s%s%s: %s", len ? "; " : "; not ",
                 v->provider, v->c.nic[0] ? " over " : "", v->c.nic, v->why);
    }
    lieni_log_say(ctx->log, device ? LIEN_LOG_WARN : LIEN_LOG_INFO, NULL, 0,
                  "provider %s (path %s)%s", first, lien_path_name(ctx->provs[0].ops->traits->path),
                  others);
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
    if (looks && lieni_select_all(&ctx->select, NULL, &list, &n) != 0)
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
    return usable > 0 ? 0 : lieni_select_complain(&ctx->select, ctx->log);
}

const struct lieni_prov_slot *lieni_providers_named(const lien_ctx *ctx, const char *name)
{
    for (unsigned i = 0; i < ctx->n_provs; i++) {
        if (strcmp(ctx->provs[i].ops->traits->name, name) == 0)
            return &ctx->provs[i];
    }
    return NULL;
}

int lieni_providers_offer(lien_ctx *ctx, const struct lieni_target *target,
                          struct lieni_offer *offer)
{
    for (unsigned i = 0; i < ctx->n_provs && i < LIENI_PROVIDERS_MAX; i++) {
        struct lieni_selected selected;
        const struct lieni_provider *ops = ctx->provs[i].ops;
        if (lieni_select_local(&ctx->select, ops, target, &selected))
            strncpy(offer->providers[offer->n_providers++], ops->traits->name,
                    sizeof(offer->providers[0]) - 1);
    }
    if (offer->n_providers > 0)
        return 0;
    lieni_log_say(ctx->log, LIEN_LOG_ERROR, NULL, LIEN_ENOPROVIDER,
                  "no candidate of any provider leads to %s", target->address);
    return lieni_select_complain(&ctx->select, ctx->log);
}

void lieni_providers_agreed(lien_ctx *ctx, const struct lieni_handshake *hs,
                            const struct lieni_log_at *at)
{
    const char *first = hs->local.providers[0];
    const struct lieni_prov_slot *would = lieni_providers_named(ctx, first);
    const struct lieni_prov_slot *taken = lieni_providers_named(ctx, hs->provider);
    if (!would || !taken || would == taken)
        return;
    char peer[LIENI_PROVIDERS_MAX * 33] = "";
    for (uint32_t i = 0; i < hs->peer.n_providers; i++) {
        size_t len = strlen(peer);
        snprintf(peer + len, sizeof peer - len, "%s%s", len ? "," : "", hs->peer.providers[i]);
    }
    bool worse = would->ops->traits->path == LIEN_PATH_RDMA &&
                 taken->ops->traits->path != LIEN_PATH_RDMA;
    lieni_log_say(ctx->log, worse ? LIEN_LOG_WARN : LIEN_LOG_INFO, at, 0,
                  "provider %s (path %s) is the best in common: this side would take %s, the peer "
                  "offers %s",
                  hs->provider, lien_path_name(taken->ops->traits->path), first, peer);
}
