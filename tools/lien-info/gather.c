// SPDX-License-Identifier: Apache-2.0
//
// See gather.h.

#include "gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <lien/lien.h>

json_t *need(json_t *value)
{
    if (!value) {
        fprintf(stderr, "lien-info: out of memory, or a text that is not UTF-8\n");
        exit(1);
    }
    return value;
}

// Whatever bytes the environment holds become text.
static json_t *text(const char *bytes)
{
    json_t *value = json_string(bytes);
    return value ? value : need(json_string("(not UTF-8)"));
}

static void put_text(json_t *object, const char *key, const char *value)
{
    json_object_set_new(object, key, text(value));
}

static void put_number(json_t *object, const char *key, uint64_t value)
{
    json_object_set_new(object, key, need(json_integer((json_int_t)value)));
}

static void put_flag(json_t *object, const char *key, bool value)
{
    json_object_set_new(object, key, need(json_boolean(value)));
}

static void hear(const lien_log_line *line, void *arg)
{
    static const char *const levels[] = {[LIEN_LOG_ERROR] = "error",
                                         [LIEN_LOG_WARN] = "warn",
                                         [LIEN_LOG_INFO] = "info",
                                         [LIEN_LOG_DEBUG] = "debug"};
    json_t *message = need(json_object());
    put_text(message, "level", levels[line->level]);
    put_text(message, "text", line->text);
    if (line->code)
        put_text(message, "code", lien_errname(line->code));
    json_array_append_new(arg, message);
}

static const char *origin_word(lien_origin origin)
{
    switch (origin) {
    case LIEN_ORIGIN_DEFAULT:
        return "default";
    case LIEN_ORIGIN_FILE:
        return "file";
    case LIEN_ORIGIN_ENVIRONMENT:
        return "environment";
    case LIEN_ORIGIN_SETTING:
        return "setting";
    }
    return "";
}

static void add_option(const lien_option_info *o, void *arg)
{
    json_t *option = need(json_object());
    put_text(option, "key", o->key);
    put_text(option, "value", o->value);
    put_text(option, "origin", origin_word(o->origin));
    if (o->file) {
        put_text(option, "file", o->file);
        put_number(option, "line", o->line);
    }
    put_text(option, "variable", o->variable);
    put_text(option, "type", o->type);
    put_text(option, "default", o->initial);
    if (strcmp(o->type, "number") == 0) {
        put_number(option, "min", o->min);
        put_number(option, "max", o->max);
    }
    put_text(option, "unit", o->unit);
    put_text(option, "text", o->text);
    json_array_append_new(arg, option);
}

static lien_ctx_opts listening(json_t *messages)
{
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.log = hear;
    opts.log_arg = messages;
    return opts;
}

json_t *gather_options(int *status)
{
    json_t *all = need(json_object()), *options = need(json_array()),
           *messages = need(json_array());
    lien_ctx_opts opts = listening(messages);
    *status = lien_options_each(&opts, add_option, options);
    json_object_set_new(all, "options", options);
    json_object_set_new(all, "messages", messages);
    return all;
}

// -- Candidates --------------------------------------------------------------------------------------------------------------------

static const char *evidence(const lien_candidate_info *c)
{
    if (c->path == LIEN_PATH_NONE)
        return "";
    if (c->ep_end_proves)
        return "own completion, or its endpoint's end";
    if (c->domain_end_proves)
        return "own completion, or its domain's end: the weakest choice, memory waits in "
               "quarantine till then";
    return "own completion only";
}

static const char *state_word(lien_candidate_state state)
{
    switch (state) {
    case LIEN_CANDIDATE_UP:
        return "up";
    case LIEN_CANDIDATE_DOWN:
        return "down";
    case LIEN_CANDIDATE_REFUSED:
        return "refused";
    }
    return "";
}

struct candidates {
    json_t *list, *providers, *choice;
};

// One entry for each provider, made from its first candidate.
static void add_provider(json_t *providers, const lien_candidate_info *c)
{
    size_t i;
    const json_t *p;
    json_array_foreach(providers, i, p)
    {
        if (strcmp(json_string_value(json_object_get(p, "name")), c->provider) == 0)
            return;
    }
    json_t *provider = need(json_object());
    put_text(provider, "name", c->provider);
    put_flag(provider, "built", c->path != LIEN_PATH_NONE);
    if (c->path != LIEN_PATH_NONE) {
        put_text(provider, "path", lien_path_name(c->path));
        put_text(provider, "evidence", evidence(c));
        put_flag(provider, "only_if_asked", c->only_if_asked);
        put_number(provider, "read_piece_max", c->read_piece_max);
        put_number(provider, "read_bytes_max", c->read_bytes_max);
        put_number(provider, "reads_max", c->reads_max);
        put_number(provider, "posts_max", c->posts_max);
    }
    json_array_append_new(providers, provider);
}

static void add_candidate(const lien_candidate_info *c, void *arg)
{
    struct candidates *all = arg;
    json_t *candidate = need(json_object());
    put_text(candidate, "provider", c->provider);
    put_text(candidate, "nic", c->nic);
    put_text(candidate, "interface", c->interface);
    put_text(candidate, "address", c->address);
    put_number(candidate, "prefix", c->prefix);
    put_text(candidate, "state", state_word(c->state));
    put_flag(candidate, "usable", c->usable);
    put_flag(candidate, "chosen", c->chosen);
    put_flag(candidate, "soft", c->soft);
    put_text(candidate, "why", c->why);
    add_provider(all->providers, c);
    if (c->chosen) {
        put_text(all->choice, "provider", c->provider);
        put_text(all->choice, "nic", c->nic);
        put_text(all->choice, "address", c->address);
        put_text(all->choice, "path", lien_path_name(c->path));
        put_flag(all->choice, "soft", c->soft);
    }
    json_array_append_new(all->list, candidate);
}

json_t *gather_report(const char *peer)
{
    int options_status, status;
    json_t *all = gather_options(&options_status);
    json_t *messages = json_object_get(all, "messages");
    struct candidates c = {need(json_array()), need(json_array()), need(json_object())};
    json_object_set_new(all, "versions", system_versions());
    json_object_set_new(all, "limits", system_limits());
    json_object_set_new(all, "devices", system_devices());
    json_object_set_new(all, "environment", system_environment());
    put_text(c.choice, "peer", peer ? peer : "");
    lien_ctx_opts opts = listening(messages);
    // Options that are wrong were told already.
    status = options_status ? options_status : lien_candidates_each(&opts, peer, add_candidate, &c);
    put_text(c.choice, "status", status ? lien_errname(status) : "0");
    json_object_set_new(all, "providers", c.providers);
    json_object_set_new(all, "candidates", c.list);
    json_object_set_new(all, "choice", c.choice);
    put_number(all, "format", 1);
    return all;
}
