// An intrusive queue.
#pragma once

namespace verbena::engine {

/// Elements in the order they came, linked through `Element::next`. Each is in one queue at a time. \thread owner
/// \alloc none
template <class Element>
class Fifo {
 public:
  [[nodiscard]] bool empty() const noexcept { return first_ == nullptr; }
  [[nodiscard]] Element* first() const noexcept { return first_; }
  void push(Element& element) noexcept {
    element.next = nullptr;
    (empty() ? first_ : last_->next) = &element;
    last_ = &element;
  }
  /// Removes the first element. The queue must not be empty.
  void pop() noexcept { first_ = first_->next; }
  /// Removes an element, if it is in the queue.
  void remove(const Element& element) noexcept {
    Element* before = nullptr;
    for (Element* at = first_; at != nullptr; before = at, at = at->next) {
      if (at != &element) continue;
      (before == nullptr ? first_ : before->next) = at->next;
      if (last_ == at) last_ = before;
      return;
    }
  }
  void clear() noexcept { first_ = nullptr; }

 private:
  Element* first_ = nullptr;
  Element* last_ = nullptr;
};

}  // namespace verbena::engine
