// SPDX-License-Identifier: Apache-2.0
//
// See select.h.

#include "core/select.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// -- Opening -----------------------------------------------------------------------------------------------------------------------

struct naming {
    const char *name;
    bool found;
};

static void look_for_name(void *arg, const struct lieni_candidate *c)
{
    struct naming *n = arg;
    n->found = n->found || lieni_nics_name(n->name, c);
}

// Whether option address is the name of an interface or device.
static bool names_interface(const struct lieni_select *s, const char *name)
{
    struct naming n = {.name = name};
    for (const struct lieni_provider *const *p = s->platform->providers; *p; p++) {
        if ((*p)->candidates)
            (*p)->candidates(look_for_name, &n);
    }
    return n.found;
}

static int wrong(struct lieni_log *log, const char *key, const char *value, const char *why)
{
    lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_EOPTION, "option %s: '%s' %s", key, value, why);
    return LIEN_EOPTION;
}

int lieni_select_open(struct lieni_select *s, const struct lieni_options *options,
                      const struct lieni_platform *platform, struct lieni_log *log)
{
    *s = (struct lieni_select){
        .options = options, .platform = platform, .fi = getenv("FI_PROVIDER")};
    const char *address = options->address;
    const char *fault = options->subnet[0] ? lieni_networks_fault(options->subnet) : NULL;
    if (fault)
        return wrong(log, "subnet", options->subnet, fault);
    if (lieni_numeric(address))
        snprintf(s->addresses, sizeof s->addresses, "%s", address);
    else if (address[0] && !names_interface(s, address)) {
        fault = lieni_resolve(address, s->addresses, sizeof s->addresses);
        if (fault) {
            char why[200];
            snprintf(why, sizeof why, "is no numeric address and no interface, and no name: %s",
                     fault);
            return wrong(log, "address", address, why);
        }
    }
    return 0;
}

// -- Judging -----------------------------------------------------------------------------------------------------------------------

static bool has_policy(const struct lieni_select *s)
{
    return s->options->nic[0] || s->options->subnet[0] || s->options->address[0];
}

bool lieni_select_looks(const struct lieni_select *s, const struct lieni_provider *ops)
{
    return ops->candidates && (has_policy(s) || ops->traits->path == LIEN_PATH_RDMA);
}

// What was asked for, by whom.
static const char *not_asked(const struct lieni_select *s, const char *name, char *why, size_t size)
{
    const char *only = s->options->provider;
    if (only[0] && strcmp(only, name) != 0)
        snprintf(why, size, "not among those asked for (option provider is \"%s\")", only);
    else if (!lieni_fi_provider_allows(s->fi, name))
        snprintf(why, size, "not among those asked for (FI_PROVIDER is \"%s\")", s->fi);
    else
        return NULL;
    return why;
}

const char *lieni_select_refusal(const struct lieni_select *s, const struct lieni_provider *ops,
                                 char *why, size_t size)
{
    const struct lieni_traits *t = ops->traits;
    if (not_asked(s, t->name, why, size))
        return why;
    if (t->only_if_asked && strcmp(s->options->provider, t->name) != 0 &&
        !lieni_fi_provider_names(s->fi, t->name))
        snprintf(why, size, "never chosen by default: LIEN_PROVIDER or FI_PROVIDER must name it");
    else if (s->options->require_zero_copy && t->path != LIEN_PATH_RDMA)
        snprintf(why, size, "its path is %s, and option require_zero_copy accepts only rdma",
                 lien_path_name(t->path));
    else
        return NULL;
    return why;
}

// NULL, or why this candidate may not be taken.
static const char *candidate_refusal(const struct lieni_select *s, const struct lieni_candidate *c,
                                     char *why, size_t size)
{
    const struct lieni_options *o = s->options;
    if (c->state != LIEN_CANDIDATE_UP)
        snprintf(why, size, "%s", c->reason);
    else if (o->nic[0] && !lieni_nics_name(o->nic, c))
        snprintf(why, size, "not among the NICs asked for (option nic is \"%s\")", o->nic);
    else if (o->subnet[0] && !lieni_networks_have(o->subnet, c->address))
        snprintf(why, size, "no address in the subnets asked for (option subnet is \"%s\")",
                 o->subnet);
    else if (o->address[0] && !lieni_nics_name(o->address, c) &&
             !lieni_networks_have(s->addresses, c->address))
        snprintf(why, size, "not the address asked for (option address is \"%s\")", o->address);
    else
        return NULL;
    return why;
}

// How well a usable candidate suits the target: 0 best, UNSUITED not at all.
#define UNSUITED 3u
static unsigned rank(const struct lieni_select *s, const struct lieni_provider *ops,
                     const struct lieni_candidate *c, const struct lieni_target *t)
{
    bool own = strcmp(c->address, t->local) == 0;
    if (!lieni_select_looks(s, ops))
        return own ? 0 : UNSUITED;
    if (lieni_networks_meet(c->address, t->address, c->prefix) || (own && t->local_reaches))
        return 0;
    if (own)
        return 1;
    return has_policy(s) && lieni_same_family(c->address, t->address) ? 2 : UNSUITED;
}

// -- All -----------------------------------------------------------------------------------------------------------------------------

struct collection {
    const struct lieni_select *s;
    const struct lieni_seen *seen; // instead of asking, or NULL
    const struct lieni_provider *ops;
    struct lieni_verdict *list;
    size_t n, room;
    bool out_of_memory;
};

static struct lieni_verdict *add(struct collection *all)
{
    if (all->n == all->room) {
        size_t room = all->room ? all->room * 2 : 16;
        struct lieni_verdict *more = realloc(all->list, room * sizeof *more);
        if (!more) {
            all->out_of_memory = true;
            return NULL;
        }
        all->list = more;
        all->room = room;
    }
    struct lieni_verdict *v = &all->list[all->n++];
    memset(v, 0, sizeof *v);
    v->ops = all->ops;
    v->provider = all->ops->traits->name;
    return v;
}

static void add_candidate(void *arg, const struct lieni_candidate *c)
{
    struct collection *all = arg;
    struct lieni_verdict *v = add(all);
    if (!v)
        return;
    v->c = *c;
    v->usable = !candidate_refusal(all->s, c, v->why, sizeof v->why);
}

// What was seen of the provider. One that a ctx has not opened is not looked at.
static void add_seen(struct collection *all)
{
    size_t before = all->n;
    struct lieni_verdict *v;
    for (size_t i = 0; i < all->seen->n; i++) {
        v = all->seen->list[i].ops == all->ops ? add(all) : NULL;
        if (v)
            *v = all->seen->list[i];
    }
    v = all->n == before ? add(all) : NULL;
    if (!v)
        return;
    v->c.state = LIEN_CANDIDATE_REFUSED;
    snprintf(v->why, sizeof v->why, "it could not be used when this context was opened");
}

static void add_provider(struct collection *all, const struct lieni_provider *ops)
{
    all->ops = ops;
    bool looks = all->seen ? lieni_select_looks(all->s, ops) : ops->candidates != NULL;
    // Of what is ruled out as a whole only the reason is worth telling; libfabric shows nothing of a provider that FI_PROVIDER excludes.
    char why[400];
    if (looks && !lieni_select_refusal(all->s, ops, why, sizeof why)) {
        if (all->seen)
            add_seen(all);
        else
            ops->candidates(add_candidate, all);
        return;
    }
    struct lieni_verdict *v = add(all);
    if (!v)
        return;
    v->usable = !lieni_select_refusal(all->s, ops, v->why, sizeof v->why);
    v->c.state = v->usable ? LIEN_CANDIDATE_UP : LIEN_CANDIDATE_REFUSED;
}

static unsigned load_of(const struct lieni_select *s, const struct lieni_verdict *v)
{
    return s->load ? s->load(s->arg, v->ops, v->c.address) : 0;
}

static unsigned rank_of(const struct lieni_select *s, const struct lieni_target *t,
                        const struct lieni_verdict *v)
{
    if (!v->usable)
        return UNSUITED;
    // A provider without candidates goes wherever the bootstrap goes.
    return v->c.address[0] ? rank(s, v->ops, &v->c, t) : 0;
}

// The best of those verdicts that are of one provider: its place, or `n`.
static size_t best(const struct lieni_select *s, const struct lieni_target *t,
                   const struct lieni_provider *ops, const struct lieni_verdict *list, size_t n)
{
    size_t chosen = n;
    unsigned least = UNSUITED, load = 0;
    for (size_t i = 0; i < n; i++) {
        const struct lieni_verdict *v = &list[i];
        unsigned r = v->ops == ops ? rank_of(s, t, v) : UNSUITED;
        unsigned l = r == UNSUITED ? 0 : load_of(s, v);
        if (r < least || (chosen < n && r == least && l < load)) {
            chosen = i;
            least = r;
            load = l;
        }
    }
    return chosen;
}

static void choose(const struct lieni_select *s, const struct lieni_target *target,
                   struct lieni_verdict *list, size_t n)
{
    size_t at = n;
    for (const struct lieni_provider *const *p = s->platform->providers; *p && at == n; p++)
        at = best(s, target, *p, list, n);
    if (at < n)
        list[at].chosen = true;
    for (size_t i = 0; i < n; i++) {
        struct lieni_verdict *v = &list[i];
        if (!v->usable || v->chosen)
            continue;
        if (rank_of(s, target, v) == UNSUITED)
            snprintf(v->why, sizeof v->why, "does not lead to %s", target->address);
        else
            snprintf(v->why, sizeof v->why, "%s over %s comes first", list[at].provider,
                     list[at].c.nic[0] ? list[at].c.nic : "the bootstrap's address");
    }
}

int lieni_select_all(const struct lieni_select *s, const struct lieni_seen *seen,
                     const struct lieni_target *target, struct lieni_verdict **list, size_t *n)
{
    struct collection all = {.s = s, .seen = seen};
    for (const struct lieni_provider *const *p = s->platform->providers; *p; p++)
        add_provider(&all, *p);
    if (all.out_of_memory) {
        free(all.list);
        return LIEN_ENOMEM;
    }
    if (target)
        choose(s, target, all.list, all.n);
    *list = all.list;
    *n = all.n;
    return 0;
}

void lieni_select_look(const struct lieni_select *s, const struct lieni_provider *const *providers,
                       struct lieni_seen *seen)
{
    struct collection all = {.s = s};
    for (; *providers; providers++) {
        all.ops = *providers;
        if (lieni_select_looks(s, *providers))
            (*providers)->candidates(add_candidate, &all);
    }
    *seen = (struct lieni_seen){.list = all.list, .n = all.n};
    if (all.out_of_memory) {
        free(all.list);
        *seen = (struct lieni_seen){.status = LIEN_ENOMEM};
    }
}

bool lieni_select_local(const struct lieni_select *s, const struct lieni_seen *seen,
                        const struct lieni_provider *ops, const struct lieni_target *target,
                        struct lieni_selected *out)
{
    struct lieni_selected chosen = {.soft = false};
    if (!lieni_select_looks(s, ops)) {
        snprintf(chosen.address, sizeof chosen.address, "%s", target->local);
        *out = chosen;
        return true;
    }
    size_t at = best(s, target, ops, seen->list, seen->n);
    if (at == seen->n)
        return false;
    const struct lieni_candidate *c = &seen->list[at].c;
    snprintf(chosen.address, sizeof chosen.address, "%s", c->address);
    snprintf(chosen.nic, sizeof chosen.nic, "%s", c->nic);
    chosen.soft = c->soft;
    chosen.read_depth = c->read_depth;
    *out = chosen;
    return true;
}

// -- Complaining -------------------------------------------------------------------------------------------------------------------

static void complain_of(const struct lieni_verdict *v, bool known_target, struct lieni_log *log)
{
    const char *why = v->why[0]      ? v->why
                      : known_target ? "leads there" // an offer has one
                                     : "could not be opened";
    if (v->c.nic[0])
        lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_ENOPROVIDER,
                      "candidate %s over %s, address %s: %s", v->provider, v->c.nic,
                      v->c.address[0] ? v->c.address : "none", why);
    else
        lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_ENOPROVIDER, "candidate %s: %s", v->provider,
                      why);
}

int lieni_select_complain(const struct lieni_select *s, const struct lieni_seen *seen,
                          const struct lieni_target *target, struct lieni_log *log)
{
    struct lieni_verdict *list = NULL;
    size_t n = 0;
    bool known = s->options->provider[0] == '\0';
    if (lieni_select_all(s, seen, target, &list, &n) != 0)
        return LIEN_ENOMEM;
    for (size_t i = 0; i < n; i++) {
        known = known || strcmp(s->options->provider, list[i].provider) == 0;
        complain_of(&list[i], target != NULL, log);
    }
    free(list);
    lieni_log_say(log, LIEN_LOG_ERROR, NULL, LIEN_ENOPROVIDER,
                  "no provider can be used: option provider is \"%s\"%s, FI_PROVIDER is \"%s\"",
                  s->options->provider, known ? "" : " (the name of none)", s->fi ? s->fi : "");
    return LIEN_ENOPROVIDER;
}
