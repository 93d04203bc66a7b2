/** \file
 * The version of these headers, and the version of the archive that the program was linked with. */
#ifndef VERBENA_VERSION_H
#define VERBENA_VERSION_H

/** The first number of the version: programs made for another one may need changes. */
#define VERBENA_VERSION_MAJOR 0
/** The second number: it grows with new features. */
#define VERBENA_VERSION_MINOR 1
/** The third number: it grows with fixes. */
#define VERBENA_VERSION_PATCH 0
/** The three numbers as text. */
#define VERBENA_VERSION "0.1.0"
/** A number that you can compare: 10203 is version 1.2.3. */
#define VERBENA_VERSION_NUMBER (VERBENA_VERSION_MAJOR * 10000 + VERBENA_VERSION_MINOR * 100 + VERBENA_VERSION_PATCH)

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** Returns VERBENA_VERSION of the archive, in static storage. */
const char* verbena_version(void);
/** Returns VERBENA_VERSION_NUMBER of the archive. */
unsigned verbena_version_number(void);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
