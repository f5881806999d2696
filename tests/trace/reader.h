// SPDX-License-Identifier: Apache-2.0
//
// What the tests of lien-trace's reader share: a dump with an event of each kind and a frame of each kind, and showing a dump to nobody.

#ifndef LIEN_TESTS_TRACE_READER_H
#define LIEN_TESTS_TRACE_READER_H

#include <stddef.h>
#include <stdint.h>

// Writes the dump; returns its size.
size_t reader_sample(uint8_t *bytes, size_t size);
// As lien-trace does with a file, twice the same one and as a frame. What dump_open says.
int reader_show(const uint8_t *bytes, size_t len);

#endif
