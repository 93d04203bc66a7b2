// The base of sessions: a loop with its memory, and the registrations of its NIC.
#pragma once

#include "channel/connection.hpp"
#include "engine/loop.hpp"
#include "session/registrations.hpp"

#include <cstdint>
#include <memory>

namespace verbena::session {

class Sessions;

/// The thread that polls the loop.
enum class DrivenBy : std::uint8_t {
  kThread,  ///< A thread of the library, which carries out other threads' calls.
  kCaller   ///< The calling thread, one at a time.
};

/// Outlives the sessions on it, which share it. \thread any
class Home : public std::enable_shared_from_this<Home> {
 public:
  Home(const Home&) = delete;
  Home& operator=(const Home&) = delete;
  virtual ~Home() = default;

  [[nodiscard]] DrivenBy driver() const noexcept { return driver_; }
  [[nodiscard]] Registrations& registrations() const noexcept { return registrations_; }
  [[nodiscard]] virtual engine::CompletionLoop& loop() noexcept = 0;
  [[nodiscard]] virtual const channel::Memory& memory() const noexcept = 0;
  [[nodiscard]] virtual Sessions& sessions() noexcept = 0;

  /// Whether the calling thread may poll the loop: only the library's own thread, if there is one.
  [[nodiscard]] bool is_driven_here() noexcept { return driver_ == DrivenBy::kCaller || loop().is_owner(); }

 protected:
  Home(DrivenBy driver, Registrations& registrations) noexcept : driver_(driver), registrations_(registrations) {}

 private:
  const DrivenBy driver_;
  Registrations& registrations_;
};

}  // namespace verbena::session
