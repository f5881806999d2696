// SPDX-License-Identifier: Apache-2.0
//
// See absent.h. A provider that joins the build leaves this list.

#include "provider/absent.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static void verbs(char *text, size_t size)
{
    char memlock[64], found[160] = "";
    DIR *devices = opendir("/sys/class/infiniband");
    for (const struct dirent *d; devices && (d = readdir(devices));) {
        size_t len = strlen(found);
        if (d->d_name[0] != '.' && len + 40 < sizeof found)
            snprintf(found + len, sizeof found - len, " %.32s", d->d_name);
    }
    if (devices)
        closedir(devices);
    lieni_memlock_text(memlock, sizeof memlock);
    if (found[0])
        snprintf(text, size, "this build of Lien has no verbs provider; RDMA devices:%s; %s", found,
                 memlock);
    else
        snprintf(text, size,
                 "no RDMA device (/sys/class/infiniband has none), and this build of Lien has no "
                 "verbs provider; %s",
                 memlock);
}

const struct lieni_absent lieni_absent_providers[] = {{"verbs", verbs}, {NULL, NULL}};
