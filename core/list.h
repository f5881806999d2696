// SPDX-License-Identifier: Apache-2.0
//
// An intrusive doubly linked list with a head node. A node that is in no list points to itself, so
// removing twice is harmless. No lock of its own.

#ifndef LIENI_LIST_H
#define LIENI_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct lieni_node {
    struct lieni_node *prev, *next;
};

#define lieni_container(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

static inline void lieni_list_init(struct lieni_node *head)
{
    head->prev = head;
    head->next = head;
}

static inline bool lieni_list_empty(const struct lieni_node *head)
{
    return head->next == head;
}

// Whether a node is in a list.
static inline bool lieni_node_in(const struct lieni_node *node)
{
    return node->next != node;
}

static inline void lieni_list_append(struct lieni_node *head, struct lieni_node *node)
{
    node->prev = head->prev;
    node->next = head;
    head->prev->next = node;
    head->prev = node;
}

static inline void lieni_list_remove(struct lieni_node *node)
{
    node->prev->next = node->next;
    node->next->prev = node->prev;
    lieni_list_init(node);
}

// The first node, or NULL.
static inline struct lieni_node *lieni_list_first(struct lieni_node *head)
{
    return lieni_list_empty(head) ? NULL : head->next;
}

// The first node, removed, or NULL.
static inline struct lieni_node *lieni_list_pop(struct lieni_node *head)
{
    struct lieni_node *node = lieni_list_first(head);
    if (node)
        lieni_list_remove(node);
    return node;
}

// The node after `node`, or NULL at the end.
static inline struct lieni_node *lieni_list_next(struct lieni_node *head, struct lieni_node *node)
{
    return node->next == head ? NULL : node->next;
}

#endif
