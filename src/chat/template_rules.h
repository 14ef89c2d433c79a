// What every template of a text-only model refuses.
#pragma once

#include <optional>
#include <vector>

#include "chat/template.h"

namespace eyrie::chat {

// An image or video part.
std::optional<Failure> first_unsupported(const std::vector<Message>& messages);

// continue_final_message where nothing can be continued.
std::optional<Failure> bad_continuation(const std::vector<Message>& messages,
                                        const RenderOptions& options);

}  // namespace eyrie::chat
