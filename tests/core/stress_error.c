// SPDX-License-Identifier: Apache-2.0
//
// lien_strerror() and its sisters promise to work from any thread: four threads ask about every
// code at once. Under ThreadSanitizer a shared buffer in them is a reported race; without it,
// an answer that changes under the caller is a failure.

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <lien/errors.h>

enum {
    THREADS = 4,
    ROUNDS = 200,
    LOWEST = -40,
    HIGHEST = 2
};

static void *ask(void *arg)
{
    int *wrong = arg;
    for (int round = 0; round < ROUNDS; round++) {
        for (int code = LOWEST; code <= HIGHEST; code++) {
            const char *text = lien_strerror(code);
            const char *name = lien_errname(code);
            (void)lien_strerror(code - 1);
            (void)lien_errname(code - 1);
            if (strcmp(text, lien_strerror(code)) != 0 || strncmp(name, "LIEN_", 5) != 0) {
                (*wrong)++;
            }
        }
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    int wrong[THREADS] = {0};
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&threads[i], NULL, ask, &wrong[i]) != 0) {
            perror("pthread_create");
            return 1;
        }
    }
    int total = 0;
    for (int i = 0; i < THREADS; i++) {
        if (pthread_join(threads[i], NULL) != 0) {
            return 1;
        }
        total += wrong[i];
    }
    printf("%d wrong answers\n", total);
    return total == 0 ? 0 : 1;
}
