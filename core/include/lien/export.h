// SPDX-License-Identifier: Apache-2.0
//
// LIEN_API marks what liblien.so exports. Everything else is hidden; the version script
// core/lien.map keeps the names to lien_*.

#ifndef LIEN_EXPORT_H
#define LIEN_EXPORT_H

#define LIEN_API __attribute__((visibility("default")))

#endif
