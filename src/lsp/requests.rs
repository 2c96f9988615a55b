//! The requests of the protocol that the server answers, and what it says about itself.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use grammar::{Code, Named};
use lsp_server::{ErrorCode, Request, RequestId};
use lsp_types::{
    CodeAction, CodeActionKind, CodeActionOptions, CodeActionOrCommand, CodeLensOptions, CompletionOptions,
    CompletionResponse, DocumentSymbolResponse, ExecuteCommandOptions, ExecuteCommandParams,
    GotoDefinitionResponse, InitializeResult, OneOf, PositionEncodingKind, PrepareRenameResponse,
    RenameOptions, SemanticTokens, SemanticTokensFullOptions, SemanticTokensOptions, SemanticTokensResult,
    ServerCapabilities, ServerInfo, TextDocumentPositionParams, TextDocumentSyncCapability,
    TextDocumentSyncKind, TextDocumentSyncOptions, TextEdit, Uri, WorkspaceSymbolResponse,
    request::{self, Request as _},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    actions::{self, Deferred},
    check::spawn,
    completion,
    diagnostics::ExplainRequest,
    format::{Form, FormatError, rewritten},
    hints, hover,
    lenses::{self, LensCommand},
    lowered::{LoweredParams, LoweredRequest, lowered},
    navigation,
    session::{Answer, BUG, Failure, Session},
    snapshot::Snapshot,
    structure, tokens,
};

/// Returns what the server says about itself.
pub(crate) fn capabilities() -> Value {
    let capabilities = ServerCapabilities {
        position_encoding: Some(PositionEncodingKind::UTF16),
        text_document_sync: Some(TextDocumentSyncCapability::Options(TextDocumentSyncOptions {
            open_close: Some(true),
            change: Some(TextDocumentSyncKind::INCREMENTAL),
            ..Default::default()
        })),
        code_action_provider: Some(
            CodeActionOptions {
                code_action_kinds: Some(vec![
                    CodeActionKind::QUICKFIX,
                    CodeActionKind::REFACTOR_REWRITE,
                    CodeActionKind::SOURCE_FIX_ALL,
                ]),
                resolve_provider: Some(true),
                ..Default::default()
            }
            .into(),
        ),
        document_formatting_provider: Some(OneOf::Left(true)),
        hover_provider: Some(true.into()),
        definition_provider: Some(OneOf::Left(true)),
        references_provider: Some(OneOf::Left(true)),
        document_highlight_provider: Some(OneOf::Left(true)),
        rename_provider: Some(OneOf::Right(RenameOptions {
            prepare_provider: Some(true),
            work_done_progress_options: Default::default(),
        })),
        document_symbol_provider: Some(OneOf::Left(true)),
        workspace_symbol_provider: Some(OneOf::Left(true)),
        folding_range_provider: Some(true.into()),
        semantic_tokens_provider: Some(
            SemanticTokensOptions {
                legend: tokens::legend(),
                full: Some(SemanticTokensFullOptions::Bool(true)),
                ..Default::default()
            }
            .into(),
        ),
        code_lens_provider: Some(CodeLensOptions { resolve_provider: Some(false) }),
        execute_command_provider: Some(ExecuteCommandOptions {
            commands: LensCommand::NAMES.iter().map(|it| (*it).to_owned()).collect(),
            ..Default::default()
        }),
        inlay_hint_provider: Some(OneOf::Left(true)),
        completion_provider: Some(CompletionOptions {
            trigger_characters: Some(["(", "=", "{", ",", "@"].map(str::to_owned).into()),
            ..Default::default()
        }),
        ..Default::default()
    };
    let server_info =
        ServerInfo { name: "hir".to_owned(), version: Some(env!("CARGO_PKG_VERSION").to_owned()) };
    value(InitializeResult { capabilities, server_info: Some(server_info) })
}

/// Answers a request. `None`: another thread answers it.
pub(crate) fn answer(session: &mut Session, request: Request) -> Option<Answer> {
    let answer = match request.method.as_str() {
        request::CodeActionRequest::METHOD => with::<request::CodeActionRequest>(request, |it| {
            let document = session.document(it.text_document.uri.as_str())?;
            let snapshot = document.snapshot();
            let chosen = snapshot.positions.span(snapshot.text(), it.range);
            let found = actions::actions(&document.uri, &snapshot, &document.report.findings, chosen);
            // Kinds have sub-kinds: `source` asks for `source.fixAll.hir`, too.
            let is_of = |kind: &CodeActionKind, it: &CodeActionKind| {
                let rest = kind.as_str().strip_prefix(it.as_str());
                rest.is_some_and(|it| it.is_empty() || it.starts_with('.'))
            };
            let wanted = |action: &CodeAction| match (&it.context.only, &action.kind) {
                (Some(only), Some(kind)) => only.iter().any(|it| is_of(kind, it)),
                (Some(_) | None, _) => true,
            };
            Ok(Some(found.into_iter().filter(wanted).map(CodeActionOrCommand::CodeAction).collect()))
        }),
        request::CodeActionResolveRequest::METHOD => return resolve(session, request),
        LoweredRequest::METHOD => return lower(session, request),
        ExplainRequest::METHOD => with::<ExplainRequest>(request, |it| {
            let code = Code::from_text(&it.code);
            let unknown = || Failure::new(ErrorCode::InvalidParams, format!("`{}` is not a code", it.code));
            code.map(Code::explained).ok_or_else(unknown)
        }),
        request::Formatting::METHOD => with::<request::Formatting>(request, |it| {
            let snapshot = session.document(it.text_document.uri.as_str())?.snapshot();
            match rewritten(&snapshot, Form::of(&snapshot)) {
                Ok(text) => Ok(Some(actions::difference(&snapshot, &text))),
                // The errors are marked in the text.
                Err(FormatError::Rejected | FormatError::NoProgram) => Ok(None::<Vec<TextEdit>>),
                Err(it) => Err(Failure::new(ErrorCode::RequestFailed, it.to_string())),
            }
        }),
        request::HoverRequest::METHOD => with::<request::HoverRequest>(request, |it| {
            let (uri, snapshot, offset) = place_of(session, &it.text_document_position_params)?;
            let catalog = session.catalog.clone();
            let summaries = &session.document(uri.as_str())?.report.summaries;
            Ok(hover::hover(&snapshot, &catalog, summaries, offset))
        }),
        request::GotoDefinition::METHOD => with::<request::GotoDefinition>(request, |it| {
            let (uri, snapshot, offset) = place_of(session, &it.text_document_position_params)?;
            Ok(navigation::definition(&uri, &snapshot, offset).map(GotoDefinitionResponse::Scalar))
        }),
        request::References::METHOD => with::<request::References>(request, |it| {
            let (uri, snapshot, offset) = place_of(session, &it.text_document_position)?;
            Ok(navigation::references(&uri, &snapshot, offset, it.context.include_declaration))
        }),
        request::DocumentHighlightRequest::METHOD => {
            with::<request::DocumentHighlightRequest>(request, |it| {
                let (_, snapshot, offset) = place_of(session, &it.text_document_position_params)?;
                Ok(navigation::highlights(&snapshot, offset))
            })
        }
        request::PrepareRenameRequest::METHOD => with::<request::PrepareRenameRequest>(request, |it| {
            let (_, snapshot, offset) = place_of(session, &it)?;
            Ok(navigation::renamed_range(&snapshot, offset).map(PrepareRenameResponse::Range))
        }),
        request::Rename::METHOD => with::<request::Rename>(request, |it| {
            let (uri, snapshot, offset) = place_of(session, &it.text_document_position)?;
            let edits = navigation::rename(&snapshot, offset, &it.new_name);
            let edits = edits.map_err(|reason| Failure::new(ErrorCode::RequestFailed, reason.to_string()))?;
            Ok(Some(actions::edit(&uri, edits)))
        }),
        request::DocumentSymbolRequest::METHOD => with::<request::DocumentSymbolRequest>(request, |it| {
            let snapshot = session.document(it.text_document.uri.as_str())?.snapshot();
            Ok(Some(DocumentSymbolResponse::Nested(structure::symbols(&snapshot))))
        }),
        request::WorkspaceSymbolRequest::METHOD => with::<request::WorkspaceSymbolRequest>(request, |it| {
            let (query, mut found) = (it.query.to_lowercase(), Vec::new());
            for document in session.documents.values_mut() {
                for it in structure::symbols(&document.snapshot()) {
                    structure::add_named(it, &query, &document.uri, &mut found);
                }
            }
            Ok(Some(WorkspaceSymbolResponse::Nested(found)))
        }),
        request::FoldingRangeRequest::METHOD => with::<request::FoldingRangeRequest>(request, |it| {
            let snapshot = session.document(it.text_document.uri.as_str())?.snapshot();
            Ok(Some(structure::folds(&snapshot)))
        }),
        request::SemanticTokensFullRequest::METHOD => {
            with::<request::SemanticTokensFullRequest>(request, |it| {
                let snapshot = session.document(it.text_document.uri.as_str())?.snapshot();
                let tokens = SemanticTokens { result_id: None, data: tokens::tokens(&snapshot) };
                Ok(Some(SemanticTokensResult::Tokens(tokens)))
            })
        }
        request::InlayHintRequest::METHOD => with::<request::InlayHintRequest>(request, |it| {
            let document = session.document(it.text_document.uri.as_str())?;
            let snapshot = document.snapshot();
            let shown = snapshot.positions.span(snapshot.text(), it.range);
            Ok(Some(hints::hints(&snapshot, &document.report.summaries, shown)))
        }),
        request::Completion::METHOD => with::<request::Completion>(request, |it| {
            let (_, snapshot, offset) = place_of(session, &it.text_document_position)?;
            Ok(Some(CompletionResponse::Array(completion::completions(&snapshot, &session.catalog, offset))))
        }),
        request::CodeLensRequest::METHOD => with::<request::CodeLensRequest>(request, |it| {
            let document = session.document(it.text_document.uri.as_str())?;
            let snapshot = document.snapshot();
            Ok(Some(lenses::lenses(&document.uri, &snapshot, &document.report.summaries)))
        }),
        request::ExecuteCommand::METHOD => return execute(session, request),
        other => {
            let message = format!("hir does not answer `{other}`");
            Err(Failure::new(ErrorCode::MethodNotFound, message))
        }
    };
    Some(answer)
}

/// Returns the text and the offset that a request is about.
///
/// # Errors
/// The document is not open.
fn place_of(
    session: &mut Session,
    at: &TextDocumentPositionParams,
) -> Result<(Uri, Arc<Snapshot>, u32), Failure> {
    let document = session.document(at.text_document.uri.as_str())?;
    let snapshot = document.snapshot();
    let offset = snapshot.positions.offset(snapshot.text(), at.position) as u32;
    Ok((document.uri.clone(), snapshot, offset))
}

/// Answers a request of one kind.
fn with<R: request::Request<Params: DeserializeOwned, Result: Serialize>>(
    request: Request,
    answer: impl FnOnce(R::Params) -> Result<R::Result, Failure>,
) -> Answer {
    match serde_json::from_value(request.params) {
        Ok(params) => answer(params).map(value),
        Err(fault) => Err(Failure::new(ErrorCode::InvalidParams, fault.to_string())),
    }
}

/// Makes the edit of an action in a thread: it may check the text many times.
fn resolve(session: &mut Session, request: Request) -> Option<Answer> {
    let id = request.id;
    let mut action: CodeAction = match serde_json::from_value(request.params) {
        Ok(action) => action,
        Err(fault) => return Some(Err(Failure::new(ErrorCode::InvalidParams, fault.to_string()))),
    };
    let deferred = action.data.clone().and_then(|it| serde_json::from_value::<Deferred>(it).ok());
    // An action that has its edit is complete.
    let Some(Deferred { uri, version, rewrite }) = deferred else { return Some(Ok(value(action))) };
    let document = match session.document(&uri) {
        Ok(document) => document,
        Err(failure) => return Some(Err(failure)),
    };
    let (uri, snapshot) = (document.uri.clone(), document.snapshot());
    if snapshot.version != version {
        let message = "the text has changed since the action was offered".to_owned();
        return Some(Err(Failure::new(ErrorCode::ContentModified, message)));
    }
    in_thread(session, id, move || {
        let text = rewrite
            .apply(&snapshot)
            .map_err(|reason| Failure::new(ErrorCode::RequestFailed, reason.to_string()))?;
        action.edit = Some(actions::edit(&uri, actions::difference(&snapshot, &text)));
        Ok(value(action))
    })
}

/// Runs passes in a thread: they may take long.
fn lower(session: &mut Session, request: Request) -> Option<Answer> {
    let id = request.id;
    let place = serde_json::from_value::<LoweredParams>(request.params);
    let place = place.map_err(|fault| Failure::new(ErrorCode::InvalidParams, fault.to_string()));
    let place = place.and_then(|LoweredParams { text_document, position, passes }| {
        let at = TextDocumentPositionParams::new(text_document, position);
        place_of(session, &at).map(|(_, snapshot, offset)| (snapshot, offset, passes))
    });
    match place {
        Ok((snapshot, offset, passes)) => {
            let catalog = session.catalog.clone();
            in_thread(session, id, move || {
                let lowered = lowered(&snapshot, &catalog, offset, &passes);
                lowered
                    .map(value)
                    .map_err(|reason| Failure::new(ErrorCode::RequestFailed, reason.to_string()))
            })
        }
        Err(failure) => Some(Err(failure)),
    }
}

/// Executes the command of a code lens in a thread: a run may take long.
fn execute(session: &mut Session, request: Request) -> Option<Answer> {
    let id = request.id;
    let refused = |message: String| Some(Err(Failure::new(ErrorCode::InvalidParams, message)));
    let params: ExecuteCommandParams = match serde_json::from_value(request.params) {
        Ok(params) => params,
        Err(fault) => return refused(fault.to_string()),
    };
    let Some(command) = LensCommand::of_name(&params.command) else {
        return refused(format!("hir has no command `{}`", params.command));
    };
    let argument = params.arguments.into_iter().next().unwrap_or_default();
    let at: TextDocumentPositionParams = match serde_json::from_value(argument) {
        Ok(at) => at,
        Err(fault) => return refused(format!("`{}`: {fault}", params.command)),
    };
    match place_of(session, &at) {
        Ok((_, snapshot, offset)) => {
            let (tell, estimator) = (session.teller(), session.estimator);
            in_thread(session, id, move || {
                let outcome = command.execute(&snapshot, estimator, offset);
                let outcome =
                    outcome.map_err(|reason| Failure::new(ErrorCode::RequestFailed, reason.to_string()))?;
                tell(&outcome.text);
                Ok(value(outcome))
            })
        }
        Err(failure) => Some(Err(failure)),
    }
}

/// Answers a request from another thread, so that the editor goes on.
fn in_thread(
    session: &Session,
    id: RequestId,
    work: impl FnOnce() -> Answer + Send + 'static,
) -> Option<Answer> {
    let respond = session.responder(id);
    let started = spawn("request", move || {
        let answer = catch_unwind(AssertUnwindSafe(work));
        respond(answer.unwrap_or_else(|_| Err(Failure::new(ErrorCode::InternalError, BUG))));
    });
    started.err().map(|fault| Err(Failure::new(ErrorCode::InternalError, fault.to_string())))
}

/// Returns the JSON of a type of the protocol; all of them have one.
fn value(it: impl Serialize) -> Value {
    serde_json::to_value(it).unwrap_or_default()
}
