// SPDX-License-Identifier: Apache-2.0
//
// Provider `ucx` in a build without UCX: it says so, and does not open. Core calls nothing else of a provider that did not open.

#include "provider/ucx/ucx_provider.h"

static const struct lieni_traits traits = LIENI_UCX_TRAITS;

static int open_none(const struct lieni_prov_args *args, struct lieni_prov **prov)
{
    (void)prov;
    args->report.say(args->report.self, LIEN_LOG_ERROR, LIEN_ENOPROVIDER,
                     "ucx: this build has it not: UCX's headers were not there");
    return LIEN_ENOPROVIDER;
}

static void candidates(lieni_candidate_fn *tell, void *arg)
{
    const struct lieni_candidate none = {
        .state = LIEN_CANDIDATE_REFUSED,
        .reason = "this build has it not: UCX's headers were not there"};
    tell(arg, &none);
}

const struct lieni_provider lieni_provider_ucx = {
    .traits = &traits, .candidates = candidates, .open = open_none};
