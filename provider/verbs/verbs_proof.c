// SPDX-License-Identifier: Apache-2.0
//
// The kernel's resource table, asked over RDMA netlink (what `rdma resource show` prints). A queue pair's number is learned while it lives: as the one that this thread made, and once connected from the list of connection identifiers, and two answers must agree. That it is
// gone is proved by one answer only: the kernel's own -ENOENT to the question for that very number on the same device, from where it was seen listed right before its end. (Some kernels answer so for what they hide from
// whoever asks, such as what a thread made that is gone: so what it was seen by must not be able to end in between, lieni_verbs_qp_stays.) Lists are no proof: they page, hide, and may be empty for other reasons. Owns one socket, under table_lock; a forked child opens one of its own.

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <libmnl/libmnl.h>
#include <netinet/in.h>
#include <rdma/rdma_netlink.h>

#include "provider/verbs/internal.h"

#define TYPE(cmd) ((RDMA_NL_NLDEV << 10) + (cmd))
// The kernel answers at once; what takes longer is no answer.
#define ANSWER_S 2
// A list that is paged while others come and go can miss an entry.
#define LIST_TRIES 3
// For a thread that was joined and is not gone yet: it has a few instructions left in the kernel.
#define ENDING_MS 1000

_Atomic bool lieni_verbs_hide_table;

// One question and what it is looking for.
struct question {
    char *buffer;
    size_t size;
    struct nlmsghdr *head;
    mnl_cb_t answer;
    void *arg;
};

static void ask(struct question *q, char *buffer, size_t size, uint16_t cmd, uint16_t flags)
{
    q->buffer = buffer;
    q->size = size;
    q->head = mnl_nlmsg_put_header(buffer);
    q->head->nlmsg_type = (uint16_t)TYPE(cmd);
    q->head->nlmsg_flags = (uint16_t)(NLM_F_REQUEST | flags);
}

// The one socket of the process, kept open: a process that has run out of descriptors must still be able to prove an end.
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mnl_socket *table;
static uint32_t asked; // the number of the last question
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

// The socket is the parent's as well, and its questions have the same numbers: an answer could be taken for that to another question. And whoever had the lock is not here.
static void in_child(void)
{
    pthread_mutex_init(&table_lock, NULL);
    if (table)
        mnl_socket_close(table);
    table = NULL;
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, in_child);
}

// The error of what is not the kernel's answer: never the one that proves.
static int no_answer(int error)
{
    return error > 0 && error != ENOENT ? -error : -EIO;
}

static int open_table(void)
{
    const struct timeval limit = {.tv_sec = ANSWER_S};
    pthread_once(&fork_once, watch_forks);
    if (table)
        return 0;
    table = mnl_socket_open2(NETLINK_RDMA, SOCK_CLOEXEC);
    if (!table)
        return no_answer(errno);
    if (mnl_socket_bind(table, 0, MNL_SOCKET_AUTOPID) == 0 &&
        setsockopt(mnl_socket_get_fd(table), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0)
        return 0;
    int error = errno;
    mnl_socket_close(table);
    table = NULL;
    return no_answer(error);
}

// 0, or a negative errno: ENOENT is the kernel's. Caller holds table_lock, and the table is open.
static int exchange(struct question *q)
{
    unsigned port = mnl_socket_get_portid(table);
    q->head->nlmsg_seq = ++asked;
    if (mnl_socket_sendto(table, q->head, q->head->nlmsg_len) < 0)
        return no_answer(errno);
    int rc = MNL_CB_OK;
    while (rc == MNL_CB_OK) {
        ssize_t len = mnl_socket_recvfrom(table, q->buffer, q->size);
        if (len < 0)
            return no_answer(errno);
        errno = 0;
        rc = mnl_cb_run(q->buffer, (size_t)len, asked, port, q->answer, q->arg);
    }
    if (rc >= 0)
        return 0;
    return errno > 0 ? -errno : -EIO; // libmnl sets ENOENT for an error message that says so alone
}

// Sends the question and takes all of the answer. 0, or a negative errno: the kernel's, or the way there.
static int answered(struct question *q)
{
    if (atomic_load(&lieni_verbs_hide_table))
        return -EPERM;
    pthread_mutex_lock(&table_lock);
    int rc = open_table();
    if (rc == 0)
        rc = exchange(q);
    // What was asked may still be answered: not to the next question.
    if (rc != 0 && rc != -ENOENT && table) {
        mnl_socket_close(table);
        table = NULL;
    }
    pthread_mutex_unlock(&table_lock);
    return rc;
}

// -- Devices -----------------------------------------------------------------------------------------------------------------------

struct search {
    const char *name; // NULL: the one that answers
    struct lieni_verbs_entry entry;
    unsigned found;
};

struct told_device {
    struct lieni_verbs_entry entry;
    bool index, guid;
};

static int device_attr(const struct nlattr *attr, void *arg)
{
    struct told_device *told = arg;
    uint16_t type = mnl_attr_get_type(attr);
    if (type == RDMA_NLDEV_ATTR_DEV_INDEX && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0) {
        told->entry.index = mnl_attr_get_u32(attr);
        told->index = true;
    } else if (type == RDMA_NLDEV_ATTR_NODE_GUID && mnl_attr_validate(attr, MNL_TYPE_U64) >= 0) {
        told->entry.guid = mnl_attr_get_u64(attr);
        told->guid = true;
    } else if (type == RDMA_NLDEV_ATTR_DEV_NAME &&
               mnl_attr_validate(attr, MNL_TYPE_NUL_STRING) >= 0) {
        strncpy(told->entry.name, mnl_attr_get_str(attr), sizeof told->entry.name - 1);
    }
    return MNL_CB_OK;
}

static int take_device(const struct nlmsghdr *head, void *arg)
{
    struct search *search = arg;
    struct told_device told = {0};
    mnl_attr_parse(head, 0, device_attr, &told);
    if (told.index && told.guid && (!search->name || strcmp(search->name, told.entry.name) == 0)) {
        search->entry = told.entry;
        search->found++;
    }
    return MNL_CB_OK;
}

// The answer to a question that is no list is one message, then nothing.
static int take_one_device(const struct nlmsghdr *head, void *arg)
{
    take_device(head, arg);
    return MNL_CB_STOP;
}

// Before 5.15 the kernel took a queue pair off its table and then tried to destroy it, and did not put it back when that failed.
static bool forgets_early(void)
{
    struct utsname name;
    unsigned major = 0, minor = 0;
    if (uname(&name) != 0 || sscanf(name.release, "%u.%u", &major, &minor) != 2)
        return true;
    return major < 5 || (major == 5 && minor < 15);
}

const char *lieni_verbs_why(int rc)
{
    return rc == -ENOSYS
               ? "this kernel is older than 5.15, whose table forgets what is not gone yet"
               : strerror(-rc);
}

int lieni_verbs_entry_find(const char *name, struct lieni_verbs_entry *entry)
{
    _Alignas(struct nlmsghdr) char buffer[32768];
    struct search search = {.name = name};
    struct question q = {.answer = take_device, .arg = &search};
    if (forgets_early())
        return -ENOSYS;
    ask(&q, buffer, sizeof buffer, RDMA_NLDEV_CMD_GET, NLM_F_DUMP);
    int rc = answered(&q);
    if (rc == 0 && search.found != 1)
        rc = -ENODEV;
    if (rc == 0)
        *entry = search.entry;
    return rc;
}

// Whether the index still is the device that it was.
static bool same_device(const struct lieni_verbs_entry *entry)
{
    _Alignas(struct nlmsghdr) char buffer[32768];
    struct search search = {0};
    struct question q = {.answer = take_one_device, .arg = &search};
    ask(&q, buffer, sizeof buffer, RDMA_NLDEV_CMD_GET, 0);
    mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_DEV_INDEX, entry->index);
    return answered(&q) == 0 && search.found == 1 && search.entry.index == entry->index &&
           search.entry.guid == entry->guid && strcmp(search.entry.name, entry->name) == 0;
}

// -- A queue pair by its number ----------------------------------------------------------------------------------------------------

// What the table says of a queue pair.
struct told_qp {
    uint32_t thread; // that made it; 0: not told, that thread has ended
    uint32_t number;
    uint8_t type;
};

static int qp_attr(const struct nlattr *attr, void *arg)
{
    struct told_qp *told = arg;
    uint16_t type = mnl_attr_get_type(attr);
    if (type == RDMA_NLDEV_ATTR_RES_PID && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
        told->thread = mnl_attr_get_u32(attr);
    else if (type == RDMA_NLDEV_ATTR_RES_LQPN && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
        told->number = mnl_attr_get_u32(attr);
    else if (type == RDMA_NLDEV_ATTR_RES_TYPE && mnl_attr_validate(attr, MNL_TYPE_U8) >= 0)
        told->type = mnl_attr_get_u8(attr);
    return MNL_CB_OK;
}

static int take_qp(const struct nlmsghdr *head, void *arg)
{
    mnl_attr_parse(head, 0, qp_attr, arg);
    return MNL_CB_STOP;
}

static enum lieni_verbs_answer ask_qp(const struct lieni_verbs_entry *entry, uint32_t port,
                                      uint32_t number, struct told_qp *told)
{
    _Alignas(struct nlmsghdr) char buffer[32768];
    struct question q = {.answer = take_qp, .arg = told};
    *told = (struct told_qp){0};
    if (!same_device(entry))
        return LIENI_VERBS_UNKNOWN;
    ask(&q, buffer, sizeof buffer, RDMA_NLDEV_CMD_RES_QP_GET, 0);
    mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_DEV_INDEX, entry->index);
    mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_PORT_INDEX, port);
    mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_RES_LQPN, number);
    int rc = answered(&q);
    if (rc == 0 && told->number == number)
        return LIENI_VERBS_LISTED;
    // Removed and made anew in between, a device could have answered for another.
    return rc == -ENOENT && same_device(entry) ? LIENI_VERBS_ABSENT : LIENI_VERBS_UNKNOWN;
}

enum lieni_verbs_answer lieni_verbs_qp_ask(const struct lieni_verbs_entry *entry, uint32_t port,
                                           uint32_t number)
{
    struct told_qp told;
    return ask_qp(entry, port, number, &told);
}

bool lieni_verbs_qp_stays(const struct lieni_verbs_entry *entry, uint32_t port, uint32_t number)
{
    const struct timespec ms = {.tv_nsec = 1000000};
    for (unsigned i = 0; i < ENDING_MS; i++) {
        struct told_qp told;
        if (ask_qp(entry, port, number, &told) != LIENI_VERBS_LISTED)
            return false;
        if (told.thread == 0 || told.thread == (uint32_t)gettid() ||
            told.thread == (uint32_t)getpid())
            return true;
        nanosleep(&ms, NULL);
    }
    return false;
}

// -- The queue pair that a thread made ---------------------------------------------------------------------------------------------

struct maker {
    uint32_t thread;
    uint32_t number;
    unsigned found;
};

static int take_made(const struct nlattr *attr, void *arg)
{
    struct maker *maker = arg;
    struct told_qp told = {0};
    if (mnl_attr_get_type(attr) != RDMA_NLDEV_ATTR_RES_QP_ENTRY)
        return MNL_CB_OK;
    mnl_attr_parse_nested(attr, qp_attr, &told);
    if (told.number != 0 && told.thread == maker->thread && told.type == IBV_QPT_RC &&
        (maker->found == 0 || maker->number != told.number)) {
        maker->number = told.number;
        maker->found++;
    }
    return MNL_CB_OK;
}

static int take_qp_table(const struct nlattr *attr, void *arg)
{
    if (mnl_attr_get_type(attr) == RDMA_NLDEV_ATTR_RES_QP)
        mnl_attr_parse_nested(attr, take_made, arg);
    return MNL_CB_OK;
}

static int take_qps(const struct nlmsghdr *head, void *arg)
{
    mnl_attr_parse(head, 0, take_qp_table, arg);
    return MNL_CB_OK;
}

bool lieni_verbs_qp_made(const struct lieni_verbs_entry *entry, uint32_t port, uint32_t *number)
{
    _Alignas(struct nlmsghdr) char buffer[32768];
    struct maker maker;
    if (!same_device(entry))
        return false;
    for (int i = 0; i < LIST_TRIES; i++) {
        maker = (struct maker){.thread = (uint32_t)gettid()};
        struct question q = {.answer = take_qps, .arg = &maker};
        ask(&q, buffer, sizeof buffer, RDMA_NLDEV_CMD_RES_QP_GET, NLM_F_DUMP);
        mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_DEV_INDEX, entry->index);
        mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_PORT_INDEX, port);
        if (answered(&q) != 0)
            return false;
        if (maker.found > 0)
            break;
    }
    *number = maker.number;
    return maker.found == 1;
}

// -- The connection identifier of an endpoint --------------------------------------------------------------------------------------

struct pair {
    const struct sockaddr *own, *peer;
    uint32_t number;
    unsigned found;
};

// Whether the kernel's address is that one, port included.
static bool same_address(const struct nlattr *attr, const struct sockaddr *want)
{
    if (!attr || mnl_attr_get_payload_len(attr) < sizeof(struct sockaddr_in6))
        return false;
    struct sockaddr_in6 got6;
    memcpy(&got6, mnl_attr_get_payload(attr), sizeof got6);
    if (got6.sin6_family != want->sa_family)
        return false;
    if (want->sa_family == AF_INET6) {
        const struct sockaddr_in6 *want6 = (const void *)want;
        return got6.sin6_port == want6->sin6_port &&
               memcmp(&got6.sin6_addr, &want6->sin6_addr, sizeof got6.sin6_addr) == 0;
    }
    const struct sockaddr_in *want4 = (const void *)want;
    struct sockaddr_in got4;
    memcpy(&got4, mnl_attr_get_payload(attr), sizeof got4);
    return want->sa_family == AF_INET && got4.sin_port == want4->sin_port &&
           got4.sin_addr.s_addr == want4->sin_addr.s_addr;
}

struct told_id {
    const struct nlattr *own, *peer;
    uint32_t number;
};

static int id_attr(const struct nlattr *attr, void *arg)
{
    struct told_id *told = arg;
    uint16_t type = mnl_attr_get_type(attr);
    if (type == RDMA_NLDEV_ATTR_RES_SRC_ADDR)
        told->own = attr;
    else if (type == RDMA_NLDEV_ATTR_RES_DST_ADDR)
        told->peer = attr;
    else if (type == RDMA_NLDEV_ATTR_RES_LQPN && mnl_attr_validate(attr, MNL_TYPE_U32) >= 0)
        told->number = mnl_attr_get_u32(attr);
    return MNL_CB_OK;
}

static int take_id(const struct nlattr *attr, void *arg)
{
    struct pair *pair = arg;
    struct told_id told = {0};
    if (mnl_attr_get_type(attr) != RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY)
        return MNL_CB_OK;
    mnl_attr_parse_nested(attr, id_attr, &told);
    if (told.number != 0 && same_address(told.own, pair->own) &&
        same_address(told.peer, pair->peer) && (pair->found == 0 || pair->number != told.number)) {
        pair->number = told.number;
        pair->found++;
    }
    return MNL_CB_OK;
}

static int take_table(const struct nlattr *attr, void *arg)
{
    if (mnl_attr_get_type(attr) == RDMA_NLDEV_ATTR_RES_CM_ID)
        mnl_attr_parse_nested(attr, take_id, arg);
    return MNL_CB_OK;
}

static int take_ids(const struct nlmsghdr *head, void *arg)
{
    mnl_attr_parse(head, 0, take_table, arg);
    return MNL_CB_OK;
}

bool lieni_verbs_qp_find(const struct lieni_verbs_entry *entry, uint32_t port,
                         const struct sockaddr *own, const struct sockaddr *peer, uint32_t *number)
{
    _Alignas(struct nlmsghdr) char buffer[32768];
    struct pair pair = {.own = own, .peer = peer};
    struct question q = {.answer = take_ids, .arg = &pair};
    ask(&q, buffer, sizeof buffer, RDMA_NLDEV_CMD_RES_CM_ID_GET, NLM_F_DUMP);
    mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_DEV_INDEX, entry->index);
    mnl_attr_put_u32(q.head, RDMA_NLDEV_ATTR_PORT_INDEX, port);
    if (!same_device(entry) || answered(&q) != 0 || pair.found != 1)
        return false;
    *number = pair.number;
    return true;
}
