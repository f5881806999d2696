// SPDX-License-Identifier: Apache-2.0
//
// Planted fault: two threads write one plain int.

#include <pthread.h>
#include <stddef.h>

static int shared;

static void *bump(void *arg)
{
    (void)arg;
    for (int i = 0; i < 1000; i++) {
        shared++;
    }
    return NULL;
}

int main(void)
{
    pthread_t other;
    if (pthread_create(&other, NULL, bump, NULL) != 0) {
        return 2;
    }
    bump(NULL);
    pthread_join(other, NULL);
    return 0;
}
