/** What the console uses of `preact.js`, which another project made. */
export function h(type: unknown, props?: object | null, ...children: unknown[]): any;
export function render(node: unknown, parent: Element): void;
export function createContext(value: unknown): any;
export function useContext(context: unknown): any;
export function useState<S>(initial: S | (() => S)): [S, (next: S | ((before: S) => S)) => void];
export function useRef<T>(initial: T): { current: T };
export function useRef(initial: null): { current: any };
export function useEffect(effect: () => unknown, inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => unknown, inputs?: unknown[]): void;
export abstract class Component {
  constructor(props?: any);
  props: any;
  state: any;
  setState(next: any, done?: () => void): void;
  abstract render(props: any, state: any): unknown;
}
