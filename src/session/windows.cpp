#include "session/windows.hpp"

#include "base/text.hpp"

#include <new>
#include <optional>

namespace verbena::session {

// --- this side asks -----------------------------------------------------------------------------------------------

void Windows::ask() noexcept {
  for (AskCall* call = asks_.first(); call != nullptr; call = call->next) {
    if (call->number != 0) continue;
    const wire::Head head{
        .kind = wire::Kind::kAsk, .immediate = call->rkey, .total = call->name.size(), .offset = last_ask_ + 1};
    if (!outbox_.say(head, bytes_of_text(call->name))) return;
    call->number = ++last_ask_;
  }
}

bool Windows::on_answer(const wire::Head& head, std::span<const std::byte> data) noexcept {
  std::optional<rdma::Window> found;
  if (!data.empty()) {
    found = wire::decode_found(data);
    if (!found) return false;
  }
  for (AskCall* call = asks_.first(); call != nullptr; call = call->next) {
    if (call->number != head.offset) continue;
    call->is_absent = !found;
    if (found) {
      call->found = *found;
      asks_.finish(*call, Status::kOk);
    } else if (call->name.empty()) {
      asks_.finish(*call, Status::kNotFound);
    }
    break;
  }
  return true;  // If no call matched, the asker has given up.
}

// --- the peer asks ------------------------------------------------------------------------------------------------

bool Windows::on_question(const wire::Head& head, std::span<const std::byte> name) noexcept {
  if (name.size() > wire::kMaxNameBytes) return false;
  // The asker has given up on the oldest question.
  if (questions_.size() == kQuestions) questions_.erase(questions_.begin());
  try {
    questions_.push_back({.number = head.offset, .rkey = head.immediate, .name = std::string(text_of(name))});
  } catch (const std::bad_alloc&) {
    return true;  // The question times out at the peer.
  }
  answered_generation_ = ~std::uint64_t{0};
  return true;
}

bool Windows::answer_one(Question& question, Registrations& registrations, const Scope& scope, bool& is_said) noexcept {
  const bool is_by_key = question.name.empty();
  const std::optional<rdma::Window> window =
      is_by_key ? registrations.find_key(scope, question.rkey) : registrations.find_name(scope, question.name);
  if (!window && question.is_told_absent) return false;
  const wire::Head head{.kind = wire::Kind::kAnswer, .total = 0, .offset = question.number};
  if (!window) {
    question.is_told_absent = is_said = outbox_.say(head, {});
    return is_said && is_by_key;
  }
  is_said = outbox_.say(head, wire::encode_found(*window));
  return is_said;
}

void Windows::answer(Registrations& registrations, const Scope& scope) noexcept {
  const std::uint64_t generation = registrations.generation();
  if (answered_generation_ == generation) return;
  bool is_said = true;
  std::erase_if(questions_,
                [&](Question& question) { return is_said && answer_one(question, registrations, scope, is_said); });
  if (is_said) answered_generation_ = generation;
}

}  // namespace verbena::session
