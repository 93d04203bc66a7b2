/** \file
 * A log hook: the library reports events as lines of text, such as connections that come and go, clients that are
 * refused, memory that cannot be taken back. It is off until a program sets a function. The library does not print,
 * except one line on stderr before it aborts because its own state is broken.
 *
 * Data paths never log: an operation that works writes no line. */
#ifndef VERBENA_LOG_H
#define VERBENA_LOG_H

/* The field's names, not C++'s style. NOLINTBEGIN(readability-identifier-naming) */
#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/** The severity of a line. */
typedef enum verbena_log_level {
  VERBENA_LOG_ERROR = 0,   /**< A resource is lost: memory in quarantine, a device that failed. */
  VERBENA_LOG_WARNING = 1, /**< Another process misbehaved or disappeared: a client that is refused, a peer that is
                                lost. */
  VERBENA_LOG_INFO = 2     /**< Listeners and connections come and go. */
} verbena_log_level;

/** Gets one line of at most 511 characters, without a line break. `line` is valid until the function returns. Any
 * thread calls it, several at a time, polling threads too: it must be short, and must not call this library. `user` is
 * the pointer given to verbena_set_log. */
typedef void (*verbena_log_func)(verbena_log_level level, const char* line, void* user);

/** Sets the function that gets lines of severity `least` and above (VERBENA_LOG_WARNING: warnings and errors), and its
 * `user`. func null turns logging off. When the call returns, the previous function has returned and is never called
 * again. Any thread may call it, but not the function itself. */
void verbena_set_log(verbena_log_func func, void* user, verbena_log_level least);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
/* NOLINTEND(readability-identifier-naming) */
#endif
