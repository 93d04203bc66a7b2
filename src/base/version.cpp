#include <verbena/version.h>

const char* verbena_version(void) { return VERBENA_VERSION; }
unsigned verbena_version_number(void) { return VERBENA_VERSION_NUMBER; }
