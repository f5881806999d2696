// SPDX-License-Identifier: Apache-2.0
//
// Shows what gather.h gathered, for people. Prints to stdout; keeps nothing.

#ifndef LIEN_INFO_TEXT_H
#define LIEN_INFO_TEXT_H

#include <jansson.h>

void text_report(const json_t *all);
void text_options(const json_t *all);

#endif
