// Windows of the peer that this side asks for, and windows of this side that the peer asks for.
#pragma once

#include "session/calls.hpp"
#include "session/outbox.hpp"
#include "session/registrations.hpp"
#include "session/wire.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace verbena::session {

/// \thread owner of the session's loop
class Windows {
 public:
  explicit Windows(Outbox& outbox) : outbox_(outbox) { questions_.reserve(kQuestions); }

  // This side asks.
  void push(AskCall& call) noexcept { asks_.push(call); }
  void cancel(AskCall& call) noexcept { asks_.remove(call); }
  void end(Status reason) noexcept { asks_.finish_all(reason); }
  /// False: the peer broke the protocol.
  [[nodiscard]] bool on_answer(const wire::Head& head, std::span<const std::byte> data) noexcept;

  // The peer asks.
  /// False: the peer broke the protocol.
  [[nodiscard]] bool on_question(const wire::Head& head, std::span<const std::byte> name) noexcept;
  /// Sends questions, and answers the peer's from those of `registrations` that `scope` sees.
  void progress(Registrations& registrations, const Scope& scope) noexcept {
    if (!questions_.empty()) [[unlikely]]
      answer(registrations, scope);
    if (!asks_.empty()) [[unlikely]]
      ask();
  }

 private:
  /// Unanswered questions of the peer, at most.
  static constexpr std::size_t kQuestions = 16;
  struct Question {
    std::uint64_t number = 0;
    std::uint32_t rkey = 0;
    std::string name;  ///< Empty: asked by key.
    bool is_told_absent = false;
  };
  void ask() noexcept;
  void answer(Registrations& registrations, const Scope& scope) noexcept;
  /// Returns whether the question is settled. Sets `is_said` to false if there was no room for the answer.
  [[nodiscard]] bool answer_one(Question& question, Registrations& registrations, const Scope& scope,
                                bool& is_said) noexcept;

  Outbox& outbox_;
  CallQueue<AskCall> asks_;
  std::uint64_t last_ask_ = 0;
  std::vector<Question> questions_;
  std::uint64_t answered_generation_ = 0;  ///< Generation of the registrations when all questions were last looked at.
};

}  // namespace verbena::session
