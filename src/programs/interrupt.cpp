#include "programs/interrupt.hpp"

#include <termios.h>
#include <unistd.h>

namespace verbena::programs {
namespace {

volatile std::sig_atomic_t asked = 0;
void note_question(int) noexcept { asked = 1; }

}  // namespace

InterruptWatch::InterruptWatch() noexcept {
  asked = 0;
  struct sigaction action{};
  action.sa_handler = note_question;
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // The next one ends the process, as by default.
  ::sigaction(SIGINT, &action, &action_before_);
  sigset_t interrupt;
  sigemptyset(&interrupt);
  sigaddset(&interrupt, SIGINT);
  ::pthread_sigmask(SIG_UNBLOCK, &interrupt, &mask_before_);
}

InterruptWatch::~InterruptWatch() {
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  ::sigaction(SIGINT, &action_before_, nullptr);
  if (is_asked_to_stop() && ::isatty(STDIN_FILENO) == 1) (void)::tcflush(STDIN_FILENO, TCIFLUSH);
}

bool InterruptWatch::is_asked_to_stop() noexcept { return asked != 0; }

}  // namespace verbena::programs
