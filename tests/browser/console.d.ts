/** Types of the console's modules: `openapi.d.ts` has those of requests and responses. */
import type { App } from "../../agentpay_server/plugins/console/app.js";
import type { Page } from "../../agentpay_server/plugins/console/page.js";
import type { Api, Given, Item, Response as Answer, Schemas } from "./openapi.d.ts";

export type { App, Page, Schemas };

export type Send = <M extends keyof Api, P extends keyof Api[M]>(method: M, path: P, given?: Given<Api[M][P]>) => Promise<Response>;
export type Call = <M extends keyof Api, P extends keyof Api[M]>(method: M, path: P, given?: Given<Api[M][P]>) => Promise<Answer<Api[M][P]>>;
export type Read = <P extends keyof Api["GET"]>(path: P, given?: Given<Api["GET"][P]>) => Promise<Answer<Api["GET"][P]>>;
export type Post = <P extends keyof Api["POST"]>(path: P, given?: Given<Api["POST"][P]>) => Promise<Answer<Api["POST"][P]>>;
export type ReadPart = <P extends keyof Api["GET"]>(
  path: P,
  given: Given<Api["GET"][P]>,
  render: (found: Answer<Api["GET"][P]>, app: App) => unknown,
) => any;

/** A list of a path: its items are of the type `I`, and its rows of the type `R`. */
type Listed<P extends keyof Api["GET"], R, I = Item<Api["GET"][P]>> = {
  path: P;
  query?: Given<Api["GET"][P]>["query"];
  asked?: Record<string, string>;
  row: (it: R, app: App) => any;
  fold?: (it: R, app: App) => any;
  present?: (items: I[], isMore: boolean, page: Page) => R[] | Promise<R[]>;
  keyOf?: (it: R) => string;
  none?: string[];
  heads?: (string | string[])[];
  cols?: string;
  look?: string;
  exports?: string;
  grows?: boolean;
  holds?: boolean;
  pick?: Picked<R> | null | false;
};
export type List = <P extends keyof Api["GET"], R = Item<Api["GET"][P]>>(given: Listed<P, R>) => any;

/** What is done with the rows that are picked, and how it is said. */
type Picked<R> = {
  verb: string;
  done: string;
  what: string;
  effect: string;
  look?: string;
  allows?: (it: R) => boolean;
  label: (it: R) => string;
  each: (it: R) => Promise<unknown>;
};
